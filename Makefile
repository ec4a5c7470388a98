# The two commands are `make quickstart` and `make test`; `make help` lists the rest.
# Everything that these rules write is in this folder: .venv, runs, build and tool caches.

.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs
RELEASE := $(VENV)/.installed-release
SOURCES := src tests benchmarks examples tools

# Choose an interpreter: make quickstart PYTHON=/path/to/python3.12
PYTHON ?=
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3)
# Extra arguments for the command of a rule: make test ARGS="-k resume"
ARGS ?=

# Keep the caches of matplotlib, pip and others out of the home folder.
export XDG_CACHE_HOME := $(CURDIR)/$(VENV)/cache
export MPLCONFIGDIR := $(CURDIR)/$(VENV)/cache/matplotlib
# Keep pyright from asking PyPI for a newer version.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Compiling all of torch takes longer than unpacking it: modules are compiled when they are imported.
INSTALL := $(BIN)/python -m pip install --quiet --quiet --no-compile -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE
# One thread per worker, the compiler's too, which would start processes that import torch, and no
# busy waiting, which would slow down other programs on the core.
# A worker has the tests of a module together: what they share is made once.
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TORCHINDUCTOR_COMPILE_THREADS=1 \
	$(BIN)/python -m pytest -n 2 --dist worksteal --basetemp=$(VENV)/pytest

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: quickstart
quickstart: $(CORE) ## train five small models on the standard library's source and compare them
	@$(BIN)/unitsphere quickstart $(ARGS)

.PHONY: pages
pages: $(CORE) ## build the HTML pages of docs/results from their JSON, in build/pages
	@$(BIN)/python benchmarks/pages.py $(ARGS)

.PHONY: models
models: $(DEV) ## train the three release models (hours) and pack them with their cards, in dist/models
	@$(BIN)/python benchmarks/models.py $(ARGS)

.PHONY: test
test: style ## run lint, import contract, type checks and the CPU test suite
	@$(MAKE) --no-print-directory -j 2 types suite

# Types are checked while the tests run, which often wait for programs that they have started.
.PHONY: suite
suite: $(DEV)
	@echo "tests"
	@$(PYTEST) -m "not data and not gpu and not browser" $(ARGS)

.PHONY: test-data
test-data: $(DEV) ## run the tests on real corpora, in the folder UNITSPHERE_DATA
	@test -d "$(UNITSPHERE_DATA)" || { \
		echo "make test-data: set UNITSPHERE_DATA to the folder of the corpora" >&2; exit 2; }
	@echo "tests on real data in $(UNITSPHERE_DATA)"
	@$(PYTEST) -m data $(ARGS)

.PHONY: test-browser
test-browser: $(DEV) ## test the report's page in headless Chromium, which is installed if it is missing
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
		{ echo "installing Debian's chromium (about 1 minute)" && apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || { \
		echo "make test-browser: install Chromium (package chromium) as root first" >&2; exit 2; }
	@echo "tests in a browser"
	@$(PYTEST) -n 0 -m browser tests/browser $(ARGS)

.PHONY: docs
docs: $(DOCS) ## build the documentation site in build/site; a dead link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)
	@echo "build/site/index.html"

.PHONY: notebooks
notebooks: $(DOCS) ## run the notebooks of examples/notebooks; ARGS=--write stores their outputs
	@$(BIN)/python tools/notebooks.py $(ARGS)

.PHONY: dist
dist: $(RELEASE) ## build the wheel and the sdist, and check that a second build is the same
	@$(BIN)/python tools/dist.py

.PHONY: test-dist
test-dist: dist ## use the wheel in a clean environment and an empty folder; write the SBOM
	@$(BIN)/python tools/smoke.py

.PHONY: address
address: ## write the project's address where it stands: make address URL=https://…
	@test -n "$(URL)" || { echo "make address: name it with URL=https://…" >&2; exit 2; }
	@sed -i "s|$$(sed -n 's/^Homepage = "\(.*\)"/\1/p' pyproject.toml)|$(URL)|g" \
		pyproject.toml CITATION.cff mkdocs.yml SECURITY.md \
		.github/ISSUE_TEMPLATE/config.yml

.PHONY: coverage
coverage: $(DEV) ## run the CPU tests under coverage (1.5 times as long); report in build/coverage
	@$(BIN)/python -m pip install --quiet --quiet -c constraints.txt pytest-cov
	@$(PYTEST) -m "not data and not gpu and not browser" --cov=unitsphere --cov-report=term \
		--cov-report=html:build/coverage $(ARGS)

# With GPU_PYTHON no environment is made: that interpreter has torch, and GPU_WHEELS is a folder of
# the wheels that it lacks, which are installed in build/gpu-wheels, without a network.
GPU_PYTHON ?=
GPU_MINUTES ?= 25
GPU_WHEELS ?=
GPU_PARTS ?=
GPU_DATA ?=
REHEARSE ?=
GPU_ARGS = --minutes $(GPU_MINUTES) $(if $(GPU_PARTS),--parts $(GPU_PARTS)) \
	$(if $(GPU_DATA),--data $(GPU_DATA)) $(if $(REHEARSE),--rehearse)

.PHONY: gpu
gpu: $(if $(GPU_PYTHON),,$(DEV)) ## measure what needs a GPU, within GPU_MINUTES; REHEARSE=1: toy sizes on a CPU
ifneq ($(GPU_WHEELS),)
	@rm -rf build/gpu-wheels
	@$(or $(GPU_PYTHON),$(BIN)/python) -m pip install --quiet --no-index --find-links $(GPU_WHEELS) \
		--no-deps --target build/gpu-wheels $(wildcard $(GPU_WHEELS)/*.whl)
endif
	@PYTHONPATH=src:tests:build/gpu-wheels $(or $(GPU_PYTHON),$(BIN)/python) benchmarks/gpu.py $(GPU_ARGS)

.PHONY: torture
torture: $(DEV) ## run the long form of tests/torture (kills, faults, fuzz): 20 to 60 minutes
	@TORTURE=long $(PYTEST) --timeout 7200 tests/torture \
		tests/training/distributed/test_parallel_losses.py tests/bench/test_traffic_budget.py $(ARGS)

.PHONY: lint
lint: style types ## run ruff, the import contract and the type checks

.PHONY: style
style: $(DEV)
	@echo "ruff"
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@echo "import contract"
	@$(BIN)/lint-imports --no-logo --no-cache

.PHONY: types
types: $(DEV)
	@echo "types"
	@$(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: format
format: $(DEV) ## format the code and apply ruff's safe fixes
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

.PHONY: clean
clean: ## remove the environment and tool caches, but not runs/
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -exec rm -rf {} +

$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing unitsphere in $(VENV) (about 1 minute)"
	@$(INSTALL) -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing unitsphere and its development tools in $(VENV) (about 1 minute)"
	@$(INSTALL) -e '.[dev]'
	@touch $@ $(CORE)

$(DOCS): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what makes the documentation in $(VENV) (about 1 minute)"
	@$(INSTALL) -e '.[docs]'
	@touch $@ $(CORE)

$(RELEASE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what makes a release in $(VENV)"
	@$(INSTALL) -e '.[release]'
	@touch $@ $(CORE)

# A name on the path may be a shim without an interpreter: ask each for its version.
$(BIN)/python:
	@for python in $(PYTHONS); do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		echo "making $(VENV) with $$($$python --version)"; \
		"$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
		exit 0; \
	done; \
	echo "unitsphere needs Python 3.11 or newer (tried: $(PYTHONS)):" \
		"install one, or name it with PYTHON=/path/to/python3.11" >&2; \
	exit 2
