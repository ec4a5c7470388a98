"""`full_disk.py CONFIG FOLDER short|long`: train on a disk that is full, then read-only,
then large enough.

To be run in a mount namespace of its own. Prints one JSON document: how often the disk was full or
read-only, how often one line said so, and how many bytes of the result are lost.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from children import DONE, USER_ERROR, status_of
from kill_runs import content, lost, session

SIZES = {"short": ("120k", "300k"), "long": ("120k", "180k", "240k", "300k", "400k")}


def main() -> None:
    config, folder = Path(sys.argv[1]), Path(sys.argv[2])
    disk = folder / "disk"
    disk.mkdir()
    assert status_of(session(config, folder / "whole")) == DONE

    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)

    mount("size=8m")
    shutil.copy(config, disk / "config.json")
    counts = {"faults": 0, "survived": 0, "lost": 0}
    said = disk.parent / "run.said"

    def refused(options: str, *words: str) -> None:
        mount(f"remount,{options}")
        link = folder / "run"
        status = status_of(session(config, link))
        lines = [line for line in said.read_text().splitlines() if line.startswith("cannot ")]
        counts["faults"] += 1
        named = len(lines) == 1 and any(word in lines[0] for word in words)
        if status == USER_ERROR and named and "Traceback" not in said.read_text():
            counts["survived"] += 1
        else:
            print(options, status, said.read_text()[-2000:], file=sys.stderr)

    (disk / "run").mkdir()
    (folder / "run").symlink_to(disk / "run")
    for size in SIZES[sys.argv[3]]:
        refused(f"size={size}", "No space left")
    refused("ro,size=400k", "Read-only file system")
    mount("remount,rw,size=8m")
    assert status_of(session(config, folder / "run")) == DONE, said.read_text()
    counts["lost"] = lost(content(folder / "run"), content(folder / "whole"))
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
