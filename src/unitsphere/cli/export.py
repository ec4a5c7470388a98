"""`unitsphere export`: a run's model as a folder for other tools."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json
from unitsphere.cli.parse import parse
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.inference.hf.export import Exported
    from unitsphere.training.load import LoadedRun, Weights


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a run's model as a folder for transformers, and compare the logits.

    Scales and constants are folded into the weights. The folder loads with
    AutoModelForCausalLM or AutoModelForMaskedLM and trust_remote_code=True,
    without this package, and every verb here takes it as a RUN.

    example: unitsphere export runs/quickstart/ngpt --out models/ngpt
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """run folder, whose newest checkpoint is exported, or one of its checkpoints"""
    out: Annotated[Path, arg(metavar="DIR")]
    """folder to write: new, or empty"""
    to: Literal["hf"] = "hf"
    """hf: config, safetensors, tokenizer, modeling file and model card"""
    weights: Literal["last", "average"] = "last"
    """last: those of the last step; average: their average by the run's optim.average, projected"""
    device: str = "cpu"
    """where the run's own model computes the logits to compare"""
    json: bool = False
    """print one JSON document"""


def run(argv: list[str]) -> int:
    """Export and say how near the logits are."""
    args = parse(Export, argv, "export")
    from unitsphere.inference.hf.export import check_transformers
    from unitsphere.training.load import load_run, pinned

    check_transformers()
    refuse_archive(args.run, "export")
    path = pinned(args.run)  # the card is written later, and the run may train on
    loaded = load_run(path, args.device, weights=args.weights)
    if is_exported_folder(args.run):
        raise UserError(f"{args.run} is an exported folder already: give the run folder")
    made = export(path, loaded, args.out, args.weights)
    if args.json:
        print_json(dataclasses.asdict(made))
        return 0
    print(f"{made.out}: {made.parameters:,} parameters in fp32")
    print(
        f"largest difference between its logits and the run's: {made.difference:.1e} "
        f"(logits up to {made.largest_logit:.1f}, {made.compared} tokens)"
    )
    return 0


def refuse_archive(run: Path, verb: str) -> None:
    """Raise UserError for an archive: `eval` and `generate` take one."""
    from unitsphere.training.archive import is_archive

    if is_archive(run):
        raise UserError(
            f"{run} is an archive, which {verb} does not read: unpack it and give its folder"
        )


def is_exported_folder(run: Path) -> bool:
    """Whether `run`, which `load_run` has loaded, has no checkpoints and is not one itself."""
    from unitsphere.training.folder import CHECKPOINTS, run_and_checkpoint

    folder, _ = run_and_checkpoint(run)
    return not (folder / CHECKPOINTS).is_dir()


def export(run: Path, loaded: "LoadedRun", out: Path, weights: "Weights" = "last") -> "Exported":
    """Write the folder `out` for the run or checkpoint `run`, which `loaded` was loaded from."""
    from unitsphere.config import to_dict
    from unitsphere.inference.hf.export import export_hf
    from unitsphere.report.model_card import model_card, without_folders

    trained = sum(parameter.numel() for parameter in loaded.model.parameters())
    return export_hf(
        loaded.model,
        loaded.tokenizer,
        loaded.config.architecture,
        loaded.config.data.context,
        to_dict(without_folders(loaded.config)),
        out,
        partial(model_card, run, loaded.config, trained, weights=weights),
    )
