# unitsphere on a GPU or a CPU. The default torch of Linux has CUDA; a GPU needs only the driver and
# the container toolkit on the host.
#
#   docker build -t unitsphere .
#   docker run --gpus all -v "$PWD":/data unitsphere train quickstart/ngpt
#
# A CPU image is a quarter of the size: name the index of torch's CPU builds (PyTorch's install page
# has its address).
#
#   docker build -t unitsphere-cpu --build-arg TORCH_INDEX=ADDRESS .
#   docker run -v "$PWD":/data unitsphere-cpu quickstart
FROM python:3.12-slim

# Triton and torch.compile call a C compiler when they build a kernel.
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/*

ARG TORCH_INDEX=""
ARG EXTRAS="hf,serve,eval,kernels"
WORKDIR /src
COPY constraints.txt ./
# torch first, in a layer of its own: a change of the source does not install it again.
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip install --no-cache-dir -c constraints.txt --index-url "$TORCH_INDEX" torch; \
    else \
        pip install --no-cache-dir -c constraints.txt torch; \
    fi
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]" && rm -rf /src

RUN useradd --create-home user
USER user
WORKDIR /data
ENTRYPOINT ["unitsphere"]
CMD ["--help"]
