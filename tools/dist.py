"""Builds the wheel and the sdist, and once more from the unpacked sdist: equal byte for byte.

    make dist

The second build stands in another folder, with other times and modes of the files. So an equal
result also shows that the sdist is complete. SOURCE_DATE_EPOCH is that of the newest commit.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str, **settings) -> str:
    """What a command prints; its own error ends the program."""
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, **settings)
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return result.stdout


def build(source: Path, out: Path) -> dict[str, bytes]:
    """File name -> contents of the sdist and the wheel of a source tree."""
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    environment = os.environ | {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", epoch)}
    for kind in ("--sdist", "--wheel"):
        command = (sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(out))
        run(*command, str(source), env=environment)
    return {path.name: path.read_bytes() for path in packages(out)}


def packages(out: Path) -> list[Path]:
    """The wheels and sdists in a folder; `make models` has a folder of its own there."""
    return sorted([*out.glob("*.whl"), *out.glob("*.tar.gz")])


def unpack(sdist: Path, folder: Path) -> Path:
    """The source tree of an sdist, readable by this user only and written just now."""
    umask = os.umask(0o077)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    os.umask(umask)
    (tree,) = folder.iterdir()
    for path in tree.rglob("*"):
        os.utime(path)
        if path.is_file():
            path.chmod(0o600)
    return tree


def unlike_git(wheel: Path) -> set[str]:
    """The files of the package that only the wheel has, or only git."""
    tracked = run("git", "ls-files", "src", cwd=ROOT).split()
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("unitsphere/")}
    return {path.removeprefix("src/") for path in tracked} ^ packed


def main() -> None:
    """Build twice into dist/; exit with a line if the builds differ, or the wheel from git."""
    out = ROOT / "dist"
    out.mkdir(exist_ok=True)
    for old in packages(out):
        old.unlink()
    first = build(ROOT, out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    with tempfile.TemporaryDirectory() as aside:
        second = build(unpack(sdist, Path(aside, "tree")), Path(aside, "dist"))
    if differing := [name for name in first if first[name] != second.get(name)]:
        sys.exit(f"make dist: the second build differs in {', '.join(differing)}")
    if stray := sorted(unlike_git(wheel)):
        sys.exit(f"make dist: only one of wheel and git has {', '.join(stray)}")
    run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
    for name, contents in first.items():
        print(f"dist/{name}  {len(contents):,} bytes, the same in two builds")


if __name__ == "__main__":
    main()
