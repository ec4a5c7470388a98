"""A study's folder: its record, which other studies are kept out by, and who works in it.

study.toml              what is asked, every key spelled out; written once
runs/<arm>/…            the run folders, their logs beside them
results.json, …         what was found
"""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import unitsphere
from unitsphere.config import differences, to_dict
from unitsphere.errors import Preempted, UserError
from unitsphere.files import write_text
from unitsphere.studies.core.local import Interrupted
from unitsphere.studies.core.spec import Study, load_study, toml_text
from unitsphere.training.device import commit, cpu_model, package_version
from unitsphere.training.folder import locked

RECORD = "study.toml"
RUNS = "runs"


@contextmanager
def study_folder(out: Path, study: Study) -> Iterator[None]:
    """Hold the folder `out` for `study`, its record written or found to be of this very study.

    Raises UserError for another study's folder, or one that is in use, and `Preempted` for an
    interruption within it.
    """
    with locked(out):
        write_record(out, study)
        try:
            yield
        except Interrupted as stopped:
            raise Preempted(f"{out}: {stopped}") from None


def write_record(out: Path, study: Study) -> None:
    """Write study.toml, or check that it says the same in all that makes its runs."""
    path = out / RECORD
    if not path.exists():
        others = any(not found.name.startswith(".") for found in out.iterdir())
        if others and not (out / RUNS).is_dir():
            raise UserError(f"{out} is not empty and holds no study: give --out another folder")
        write_text(path, toml_text(to_dict(study)))
        return
    odd = [
        line
        for line in differences(load_study(type(study), path), study)
        if not line.startswith(study.CHANGEABLE)
    ]
    if odd:
        raise UserError(
            f"{out} holds another study ({'; '.join(odd)}): give another --out; or delete {path}, "
            "and the finished runs that this study has too are reused"
        )


def provenance(program: str = "unitsphere") -> dict[str, str | None]:
    """The command line, `program` in the place of its path, and what it ran on."""
    return {
        "command": shlex.join([*program.split(), *sys.argv[1:]]),
        "commit": commit(),
        "machine": f"{cpu_model()}, {os.cpu_count()} cores",
        "python": sys.version.split()[0],
        "torch": package_version("torch"),
        "unitsphere": unitsphere.__version__,
    }
