"""Whatever file operation a saving dies at or is refused, the last good checkpoint serves."""

import pytest
from torture.conftest import LONG
from torture.forked_script import run


@pytest.mark.timeout(7200)
def test_every_file_operation_of_a_saving(tmp_path, tally):
    found = run("fault_saves", tmp_path, "long" if LONG else "short", folder=tmp_path)
    assert not found["wrong"], found["wrong"][:5]
    refused = {name.removeprefix("refuse at ") for name in found["counts"]} - {"kill at killed"}
    assert refused >= {"open", "write", "fsync", "rename", "mkdir"}
    for what, counts in found["counts"].items():
        name = what.replace("kill at killed", "SIGKILL at each file operation")
        tally(f"saving: {name}", counts["faults"], counts["survived"])
