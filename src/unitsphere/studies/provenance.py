"""Where figures come from: command, commit, machine, versions."""

import os
import shlex
import sys

import unitsphere
from unitsphere.training.environment import commit, cpu_model, package_version


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
