"""The error of rounding to FP8: of one product and of a small training run, emulated on a CPU.

    OMP_NUM_THREADS=1 python benchmarks/fp8.py --out DIR

Errors are those of random unit vectors against fp64. Runs are the quickstart's with fewer steps,
one seed, in fp32, bf16 and fp8; finished ones in DIR are reused. Prints the tables of
docs/results/speed.md.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unitsphere.models.plans import input_bounds
from unitsphere.models.trunk import Transformer
from unitsphere.ops.fp8 import Bounded, fp8_linear
from unitsphere.report.render.text import markdown_table
from unitsphere.studies.core.plan import with_overrides
from unitsphere.training.config import RunConfig
from unitsphere.training.corpus import open_corpus
from unitsphere.training.device import commit, cpu_model, emulated_fp8
from unitsphere.training.load import load_run
from unitsphere.training.recipes import load_recipe
from unitsphere.training.run import train

ARMS = ("gpt-plus", "ngpt", "angpt")
PRECISIONS = ("fp32", "fp8", "bf16")
SHARED = {"train.steps": 100, "train.batch_tokens": 1024, "train.eval_every": 0,
          "train.save_every": 0, "train.device": "cpu"}  # fmt: skip


def error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖/‖wanted‖."""
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def product_errors(d_in: int, d_out: int, bounded: Bounded) -> tuple[float, float, float]:
    """Errors of y, dx and dW, for 2,048 unit vectors, unit rows of W and a normal dy."""
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(2048, d_in, generator=generator), dim=1).requires_grad_()
    weight = F.normalize(torch.randn(d_out, d_in, generator=generator), dim=1).requires_grad_()
    dy = torch.randn(2048, d_out, generator=generator)
    y = fp8_linear(x, weight, bounded=bounded)
    dx, dw = torch.autograd.grad(y, (x, weight), dy)
    exact_x, exact_w, exact_dy = x.detach().double(), weight.detach().double(), dy.double()
    return (
        error(y.detach(), exact_x @ exact_w.T),
        error(dx, exact_dy @ exact_w),
        error(dw, exact_dy.T @ exact_x),
    )


def product_table() -> str:
    """A row a size and way of scaling."""
    rows = []
    for d_in, d_out in ((128, 512), (1024, 1024), (1024, 4096)):
        for name, bounded in (("static", Bounded(1.0, 1.0)), ("dynamic", Bounded())):
            errors = product_errors(d_in, d_out, bounded)
            rows.append([f"{d_in} → {d_out}", name, *(f"{100 * e:.2f}%" for e in errors)])
    return markdown_table(["size", "scales of x and W", "y", "dx", "dW"], rows)


def run_config(arm: str, precision: str) -> RunConfig:
    """The quickstart's run of an arm, shortened."""
    return with_overrides(load_recipe(f"quickstart/{arm}"), SHARED | {"train.precision": precision})


def loss_table(out: Path) -> str:
    """A row an arm: validation loss by precision, and what 16 and 8 bits add."""
    losses: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for precision in PRECISIONS:
        for arm in ARMS:
            with emulated_fp8():
                run = train(run_config(arm, precision), out / f"{arm}-{precision}")
            losses[arm].append(run.val_loss)
    rows = [
        [arm, *(f"{loss:.4f}" for loss in found), *(f"{x - found[0]:+.4f}" for x in found[1:])]
        for arm, found in losses.items()
    ]
    heads = [f"{precision} − {PRECISIONS[0]}" for precision in PRECISIONS[1:]]
    return markdown_table(["arm", *PRECISIONS, *heads], rows)


class Largest:
    """The largest element and length that the inputs of a model's static layers have shown."""

    def __init__(self, model: Transformer) -> None:
        self.element = self.length = 0.0
        for name, bound in input_bounds(model).items():
            if bound:
                model.get_submodule(name).register_forward_pre_hook(self.look)

    def look(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Keep what is larger than before."""
        self.element = max(self.element, inputs[0].abs().amax().item())
        self.length = max(self.length, inputs[0].norm(dim=-1).amax().item())


@torch.no_grad()
def input_table(out: Path) -> str:
    """What the layers with static input scales are fed after training, on 16 training windows."""
    rows = []
    for arm in ("ngpt", "angpt"):
        model, _, config = load_run(out / f"{arm}-fp8", "cpu")
        largest = Largest(model)
        for step in range(4):
            model(open_corpus(config).batches.batch(step).inputs)
        rows.append([arm, f"{largest.element:.3f}", f"{largest.length:.3f}"])
    return markdown_table(["arm", "largest element", "largest length"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="What rounding to FP8 costs, on a CPU.")
    parser.add_argument("--out", type=Path, required=True, help="where the runs are kept")
    out: Path = parser.parse_args().out
    print(f"commit {commit()}, {cpu_model()}, torch {torch.__version__}\n")
    print(product_table(), loss_table(out), input_table(out), sep="\n\n")


if __name__ == "__main__":
    main()
