"""Studies by name or file: those that come with the package, and a user's own."""

from pathlib import Path

from unitsphere.config import did_you_mean
from unitsphere.errors import UserError

FOLDER = Path(__file__).parent / "shipped"


def shipped_studies() -> list[str]:
    """The names of the studies that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_study(name: str, verb: str) -> tuple[Path, Path]:
    """The TOML file of a study, and the folder that is its own unless another is asked for.

    That is runs/NAME of a file, runs/VERB-NAME of a study that comes with the package. Raises
    UserError for a name that is neither.
    """
    if name in shipped_studies():
        return FOLDER / f"{name}.toml", Path("runs") / f"{verb}-{name}"
    if not name.endswith(".toml"):
        raise UserError(
            f"no study '{name}'{did_you_mean(name, shipped_studies())}, nor a .toml file"
        )
    return Path(name), Path("runs") / Path(name).stem
