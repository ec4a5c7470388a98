"""What a release is made of: metadata, versions, workflows. `make dist` builds it."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import unitsphere

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
METADATA = PROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github").rglob("*.yml"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_metadata_are_complete():
    for key in ("description", "authors", "keywords", "classifiers", "license", "urls", "scripts"):
        assert METADATA[key], key
    assert [*METADATA["license-files"]] == ["LICENSE"]
    assert {"readme", "version"} == {*METADATA["dynamic"]}
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/unitsphere/__init__.py"


def test_the_version_and_the_address_are_the_same_everywhere():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == unitsphere.__version__
    address = METADATA["urls"]["Homepage"]
    assert citation["repository-code"] == address
    rule = re.search(r"^address:.*\n(?:\t.*\n)+", read("Makefile"), re.M)
    assert rule
    named = set(re.findall(r"[\w./-]+\.(?:toml|cff|yml|md)\b", rule[0].partition("|g")[2]))
    texts = [*ROOT.glob("*.*"), *(ROOT / "docs").rglob("*.md"), *WORKFLOWS]
    holding = {
        str(path.relative_to(ROOT))
        for path in texts
        if path.suffix in (".toml", ".cff", ".yml", ".md")
        and address in path.read_text(encoding="utf-8")
    }
    assert holding == named
    assert all(url.startswith(address) for url in METADATA["urls"].values())


def test_pictures_and_links_of_the_readme_are_whole_addresses_outside_the_repository():
    text = read("README.md")
    rules = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    for rule in rules:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    pictures = [target for target in targets if target.endswith((".png", ".gif"))]
    assert pictures
    assert all("/raw/v" in picture for picture in pictures)


@pytest.mark.parametrize("extra", ["dev", "docs", "release"])
def test_what_development_needs_is_pinned(extra):
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in read(
        "constraints.txt"
    ).splitlines()}  # fmt: skip
    needed = {
        re.split(r"[\[>=; ]", requirement)[0].lower()
        for requirement in METADATA["optional-dependencies"][extra]
    }
    assert needed <= pinned


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_and_forms_are_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_the_workflow_runs_what_ci_runs_on_every_python_that_is_named():
    job = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]["test"]
    assert any(step.get("run") == "bash .ci/run" for step in job["steps"])
    tested = {entry["python"] for entry in job["strategy"]["matrix"]["include"]}
    named = {line.rpartition(" ")[2] for line in METADATA["classifiers"] if ":: 3." in line}
    assert tested == named
    assert {"oldest", "newest"} <= {
        entry.get("torch") for entry in job["strategy"]["matrix"]["include"]
    }


def test_a_release_keeps_no_password():
    jobs = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"]
    assert "password" not in read(".github/workflows/release.yml").partition("name:")[2]
    assert all(job["permissions"]["id-token"] == "write" for job in jobs.values())
