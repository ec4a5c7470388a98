"""Installs the wheel in a clean environment and uses it from an empty folder.

    make test-dist

It trains 20 steps, samples text and writes the report within SECONDS (on a busy machine, of
processor time), checks that no extra installs another torch, and writes what was installed as an
SBOM (CycloneDX) next to the wheel.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
SECONDS = 240
"""A shared core has taken 100: this finds a hang, not a slow machine."""
COMMANDS = [
    "train quickstart/ngpt --train.steps 20 --train.eval_tokens 20000 --out first",
    "generate first --prompt import --max_tokens 20",
    "report first --out first.html",
]


def run(*command: str | Path, **settings) -> str:
    """What a command prints; its failure ends the program."""
    result = subprocess.run(list(map(str, command)), text=True, stdout=subprocess.PIPE, **settings)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed: {result.stdout}")
    return result.stdout


def install(wheel: Path, folder: Path) -> Path:
    """A new environment with the wheel, pip and nothing else; its folder of programs."""
    venv.create(folder, with_pip=True, clear=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    run(programs / "pip", "install", "-q", "--no-compile", "-c", CONSTRAINTS, wheel)
    return programs


def use(programs: Path) -> tuple[float, float]:
    """Run COMMANDS in an empty folder; the seconds that they took, and those of processors."""
    hidden = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as empty:
        start, before = time.monotonic(), processor_seconds()
        for command in COMMANDS:
            run(programs / "unitsphere", *command.split(), cwd=empty, env=hidden)
        seconds = time.monotonic() - start, processor_seconds() - before
        page = Path(empty, "first.html").read_text(encoding="utf-8")
        assert "<html" in page, "report wrote no page"
    return seconds


def processor_seconds() -> float:
    """Processor time of all programs that this one has started and waited for."""
    used = os.times()
    return used.children_user + used.children_system


def check_extras(wheel: Path, programs: Path) -> None:
    """Resolve every extra that a user installs; none may bring another torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = ",".join(sorted(project["optional-dependencies"].keys() - {"dev", "docs", "release"}))
    command = (programs / "pip", "install", "-q", "--dry-run", "--report", "-", "-c", CONSTRAINTS)
    report = json.loads(run(*command, f"{wheel}[{extras}]"))
    names = [found["metadata"]["name"].lower() for found in report["install"]]
    if "torch" in names:
        sys.exit(f"make test-dist: an extra of {extras} installs another torch")
    print(f"extras {extras}: {len(names) - 1} more packages, and torch stays")


def write_sbom(wheel: Path, programs: Path) -> None:
    """The packages of the environment, in CycloneDX's JSON."""
    out = wheel.parent / "sbom.cdx.json"
    command = (sys.executable, "-m", "cyclonedx_py", "environment", programs / "python")
    described = ("--pyproject", ROOT / "pyproject.toml", "--output-reproducible")
    run(*command, *described, "--of", "JSON", "-o", out)
    print(f"dist/{out.name}  {len(json.loads(out.read_bytes())['components'])} components")


def main() -> None:
    """Install, use, check, write; exit with a line at the first that fails."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    programs = install(wheel, ROOT / "build/smoke")
    seconds, used = use(programs)
    print(f"trained, sampled and reported in {seconds:.0f} s, {used:.0f} s of processor time")
    check_extras(wheel, programs)
    write_sbom(wheel, programs)
    if min(seconds, used) > SECONDS:
        sys.exit(f"make test-dist: that is more than {SECONDS} s")


if __name__ == "__main__":
    main()
