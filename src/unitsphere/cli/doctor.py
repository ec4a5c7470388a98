"""`unitsphere doctor`: what is installed, what would be used, what is missing."""

import dataclasses
import importlib.metadata
import importlib.util
import platform
import re
import shutil
from collections.abc import Sequence
from typing import Any

from unitsphere import __version__
from unitsphere.cli.output import print_json, print_table
from unitsphere.cli.parse import parse
from unitsphere.studies.core.local import available_cores

# "torch>=2.11; extra == 'dev'" -> name, version wanted, extra
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[.*?\])?(?P<wanted>[^;]*)(?:.*extra == .(?P<extra>\w+))?"
)


@dataclasses.dataclass(frozen=True)
class Doctor:
    """What is installed, what would be used, what is missing and how to get it.

    example: unitsphere doctor --json
    """

    json: bool = False
    """print one JSON document instead of tables"""


def run(argv: list[str]) -> int:
    """Look and print."""
    args = parse(Doctor, argv, "doctor")
    packages = installed_packages()
    report = {
        "unitsphere": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(available_cores()),
        "disk_free_bytes": shutil.disk_usage(".").free,
        **computing(),
        "packages": packages,
        "missing": how_to_get([p["extra"] for p in packages if p["version"] is None]),
    }
    if args.json:
        print_json(report)
    else:
        _print_tables(report)
    return 0


def computing() -> dict[str, Any]:
    """What torch would compute with; empty where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch

    from unitsphere.kernels.device_attention import backends_of
    from unitsphere.training.device import pick_device, pick_precision

    device = pick_device("auto")
    found: dict[str, Any] = {
        "device": device.type,
        "precision": pick_precision("auto", device),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpus": torch.cuda.device_count(),
            "gpu_memory_bytes": properties.total_memory,
            "attention": [backend.name.lower() for backend in backends_of(device)],
        }
    return found


def installed_packages() -> list[dict[str, Any]]:
    """Every package that the project can use: wanted and installed version, and its extra.

    Nothing of a checkout that is imported without being installed: then no metadata names them.
    """
    try:
        requirements = importlib.metadata.requires("unitsphere") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = []
    for requirement in requirements:
        match = REQUIREMENT.match(requirement)
        assert match is not None
        found.append(
            {
                "name": match["name"],
                "wanted": match["wanted"].strip(),
                "version": _version(match["name"]),
                "extra": match["extra"],
            }
        )
    return found


def how_to_get(extras: Sequence[str | None]) -> list[str]:
    """The command for packages of these extras, None for the core's; none without packages."""
    named = ",".join(dict.fromkeys(filter(None, extras)))
    whole = f"unitsphere[{named}]" if named else "unitsphere"
    return [f"pip install '{whole}'"] if extras else []


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print_tables(report: dict[str, Any]) -> None:
    plain = {k: v for k, v in report.items() if k not in ("packages", "missing")}
    for key, value in plain.items():
        print(f"{key.removesuffix('_bytes'):<16}{_shown(key, value)}")
    print()
    rows = [
        [p["name"], p["wanted"], p["version"] or "missing", p["extra"] or "core"]
        for p in report["packages"]
    ]
    print_table(("package", "wanted", "installed", "part"), rows)
    for command in report["missing"]:
        print(f"missing packages come with: {command}")


def _shown(key: str, value: Any) -> str:
    return f"{value / 2**30:.1f} GiB" if key.endswith("bytes") else str(value)
