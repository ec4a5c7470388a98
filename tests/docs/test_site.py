"""What the documentation site shows, without building it: `make docs` does that."""

import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import pytest

from unitsphere.cli.app import VERBS
from unitsphere.models.registry import ARCHITECTURES

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import notebooks  # noqa: E402 - its folder is on the path now
import reference_pages  # noqa: E402

PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
]


def slug(heading: str) -> str:
    """The anchor of a heading, as the site and the usual hosts make it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    dead = []
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]+)?\)", text):
        found = page.parent / target if target else page
        if not found.exists():
            dead.append(target)
        elif anchor and found.suffix == ".md" and anchor[1:] not in anchors(found):
            dead.append(target + anchor)
    assert dead == []


def test_every_public_name_has_a_docstring():
    for name in ("unitsphere", "unitsphere.nn", "unitsphere.optim", "unitsphere.trainer"):
        module = importlib.import_module(name)
        found = {public: getattr(module, public) for public in module.__all__}
        assert [p for p, o in found.items() if p != "__version__" and not inspect.getdoc(o)] == []


def test_every_key_is_on_a_page_with_its_type_default_meaning_and_recipes():
    pages = reference_pages.config_pages()
    assert {f"model-{name}" for name in ARCHITECTURES} <= pages.keys()
    steps = pages["train"].partition("## `train.steps`")[2].partition("\n## ")[0]
    assert "Optimizer updates; the schedule is stretched over them." in steps
    assert "Integer; default `300`." in steps
    assert "quickstart/ngpt" in steps
    assert "### `optim.muon.cautious`" in pages["optim"]
    assert "none; selective" in pages["train"]


def test_a_verb_s_page_shows_its_help(capsys):
    assert "--temperature" in reference_pages.help_of("generate")
    assert "unitsphere train RECIPE" in reference_pages.help_of("train")
    assert all(about for _, about in VERBS.values())


@pytest.mark.parametrize("path", sorted(notebooks.NOTEBOOKS.glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_is_stored_with_its_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    assert not [o for cell in code for o in cell["outputs"] if o["output_type"] == "error"]
    assert "```text" in notebooks.as_markdown(path)
