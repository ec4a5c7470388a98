"""The kinds of studies by name, and the studies that come with the package.

To add a kind, write a file with its `KIND` (`unitsphere.studies.core.kind`), and its line here.
"""

from importlib import import_module
from pathlib import Path

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError
from unitsphere.studies.core.kind import Kind

KINDS = {
    "ablate": "unitsphere.studies.ablate",
    "compare": "unitsphere.studies.compare",
    "context": "unitsphere.studies.context",
    "ladder": "unitsphere.studies.ladder_files",
    "lr-ramp": "unitsphere.studies.ramp",
    "quantize": "unitsphere.studies.quantize",
    "quickstart": "unitsphere.studies.quickstart",
    "sweep": "unitsphere.studies.sweep",
}
FOLDER = Path(__file__).parent / "shipped"


def study_kind(name: str) -> Kind:
    """The kind of a name; a `UserError` for an unknown one."""
    if name not in KINDS:
        raise UserError(f"unknown kind of study '{name}'{did_you_mean(name, KINDS)}")
    return import_module(KINDS[name]).KIND


def shipped_studies() -> list[str]:
    """The names of the studies that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_study(name: str, verb: str) -> tuple[Path, Path]:
    """The TOML file of a study, and the folder that it uses unless `--out` names another.

    That is runs/NAME for a file, runs/VERB-NAME for a study that comes with the package. Raises
    UserError for a name that is neither.
    """
    if name in shipped_studies():
        return FOLDER / f"{name}.toml", Path("runs") / f"{verb}-{name}"
    if not name.endswith(".toml"):
        raise UserError(
            f"no study '{name}'{did_you_mean(name, shipped_studies())}, and not a .toml file"
        )
    return Path(name), Path("runs") / Path(name).stem
