"""What the verbs of studies share: a key to set, a file alone, workers, and the dry run."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from unitsphere.cli.output import hours, print_json, print_table
from unitsphere.errors import UserError

if TYPE_CHECKING:
    from unitsphere.studies.core.spec import Study

S = TypeVar("S", bound="Study")


def settings_of(texts: Sequence[str]) -> dict[str, object]:
    """What `--set` asks for; UserError where a key is set twice."""
    found: dict[str, object] = {}
    for key, value in map(setting, texts):
        if key in found:
            raise UserError(f"--set has {key} twice")
        found[key] = value
    return found


def setting(text: str) -> tuple[str, object]:
    """KEY=VALUE, the value as TOML has it, or a text without quotes."""
    import tomllib

    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise UserError(f"--set {text!r} is no KEY=VALUE, such as model.n_layers=3")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def check_alone(file: str, args: object, usual: object, names: Sequence[str]) -> None:
    """Raise UserError for an option that a study's file says itself."""
    for name in names:
        if getattr(args, name) != getattr(usual, name):
            raise UserError(f"{file} says what is trained: leave --{name} out, or edit it")


def with_workers(study: S, workers: int | None) -> S:
    """The study with as many runs at a time; None: as many as it says itself."""
    if workers is None:
        return study
    return dataclasses.replace(study, run=dataclasses.replace(study.run, workers=workers))


def show_study(study: "Study", out: Path, json: bool) -> int:
    """Print what training the study in `out` would cost, as tables or one JSON document."""
    from unitsphere.studies.forecast import forecast_study
    from unitsphere.training.forecast import size

    found = forecast_study(study, out)
    if json:
        print_json(found)
        return 0
    columns = ("runs of", "runs", "parameters", "tokens each", "FLOPs", "time", "disk")
    rows = [
        [
            one["name"],
            str(one["runs"]),
            f"{one['parameters']:,}",
            f"{one['tokens'] // one['runs']:,}",
            f"{one['flops']:.2e}",
            hours(one["hours"]),
            size(one["disk"]),
        ]
        for one in found["parts"]
    ]
    print_table(columns, rows)
    finished = f", {found['finished']} of them finished in {out}" if found["finished"] else ""
    print(f"\n{found['runs']} runs{finished}, {found['workers']} at a time")
    if found["may_grow_by"]:
        print(f"up to {found['may_grow_by']} more where a best rate lies at an edge of its grid")
    print(f"{hours(found['hours'])} of training, {found['flops']:.3e} FLOPs in all")
    print(f"  ({found['throughput']})")
    print(f"{size(found['disk'])} of checkpoints on the disk, in {out}")
    return 0
