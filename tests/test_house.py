"""The project's promises that can be checked without running it."""

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import unitsphere
from unitsphere.config import from_dict, read_json, to_dict
from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints
from unitsphere.training.recipes import load_recipe, recipe_folder, recipe_names

SOURCE = Path(unitsphere.__file__).parent
REPOSITORY = Path(__file__).parent.parent
MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST = 350
ALONE = {"inference/hf/modeling_unitsphere.py"}  # leaves the package: it must be one file


def named(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_the_package_names_what_it_offers_and_costs_nothing():
    code = (
        "import sys, unitsphere; assert set(unitsphere.__all__) <= set(dir(unitsphere)); "
        "unitsphere.UserError; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(hasattr(unitsphere, name) for name in unitsphere.__all__)
    assert unitsphere.UserError is UserError


def contract() -> set[str]:
    """The recipes that scripts and documents rely on."""
    families = {
        "ngpt2024": (["gpt", "ngpt"], ["0.5b", "1b"]),
        "angpt2025": (
            ["gpt-plus", "ngpt", "angpt"],
            ["32m", "62m", "125m", "250m", "0.5b", "1b"],
        ),
        "normformer2021": (["gpt", "normformer"], ["125m", "355m", "1.3b", "2.7b"]),
    }
    sized = {
        f"{paper}/{architecture}-{size}"
        for paper, (architectures, sizes) in families.items()
        for architecture, size in itertools.product(architectures, sizes)
    }
    return sized | {f"quickstart/{arm}" for arm in ("gpt-plus", "ngpt", "angpt", "normformer")}


def test_every_recipe_of_the_contract_is_there():
    assert contract() <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_strictly_and_comes_back_the_same(name):
    config = load_recipe(name)
    assert from_dict(type(config), to_dict(config)) == config
    assert config.train.batch_tokens % config.data.context == 0


@pytest.mark.parametrize("name", sorted(contract() - {n for n in contract() if "quick" in n}))
def test_a_paper_s_recipe_cites_where_its_values_come_from(name):
    text = (recipe_folder() / f"{name}.toml").read_text(encoding="utf-8")
    comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
    assert any(re.search(r"Table|§|Section|Appendix|eq\.", comment) for comment in comments)


def test_the_quickstart_s_arms_differ_in_nothing_but_architecture_and_its_settings():
    arms = [load_recipe(f"quickstart/{arm}") for arm in ("gpt-plus", "ngpt", "angpt", "normformer")]
    first = arms[0]
    for arm in arms[1:]:
        assert arm.data == first.data
        assert arm.train == first.train
        for size in ("d_model", "n_layers", "n_heads"):
            assert getattr(arm.model, size) == getattr(first.model, size)


def test_files_stay_short():
    lines = {named(m): len(m.read_text(encoding="utf-8").splitlines()) for m in MODULES}
    assert {n: count for n, count in lines.items() if count > LONGEST and n not in ALONE} == {}


OPENS = {"read_text", "read_bytes", "write_text", "write_bytes", "open"}
OPENS_ITSELF = {
    "files.py": "what all others go through",
    "training/recipes.py": "a recipe that ships with the package",
    "training/archive.py": "members of an archive, each checked, and files that are packed",
    "report/render/html.py": "the page's own parts",
    "inference/hf/engine.py": "the package's own modeling file",
    "training/device.py": "/proc/cpuinfo",
    "training/compile_cache.py": "the user's own cache, whose owner was checked",
    "data/writer.py": "the end of what it has just written",
}


@pytest.mark.parametrize("path", [m for m in MODULES if named(m) not in ALONE], ids=named)
def test_files_of_others_are_opened_and_written_in_one_place(path):
    """By files.py: it refuses what is not a file, and follows no link (docs/security.md)."""
    found = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in OPENS
        # A class's own `open`, the system's with its flags, and files that must not exist yet.
        and ast.unparse(node.func.value) not in ("Shards", "os")
        and not (node.args and ast.unparse(node.args[0]) in ("'x'", "'xb'"))
    ]
    assert bool(found) == (named(path) in OPENS_ITSELF), found


SHIPPED = [
    *MODULES,
    *SOURCE.rglob("*.toml"),
    *sorted((REPOSITORY / "benchmarks").glob("*.py")),
    REPOSITORY / "Makefile",
    REPOSITORY / "pyproject.toml",
]


def test_no_file_names_a_place_on_the_machine_it_was_written_on():
    # Absolute paths of a home folder, a mount or a build machine; /proc and /dev are any Linux's.
    pattern = re.compile(r"""(?<![\w.$)}/:*-])/(?:home|root|work|opt|mnt|srv|Users)/""")
    found = [
        f"{path}:{number}"
        for path in SHIPPED
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_the_versions_of_constraints_are_exact():
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", pin) for pin in pins)
    assert any(pin.startswith("torch==") for pin in pins)


TUNED = {
    "quickstart/gpt-plus": "gpt-plus-adamw",
    "unitsphere/gpt-plus-muon-1m": "gpt-plus-muon",
    "quickstart/ngpt": "ngpt-adam",
    "quickstart/angpt": "angpt-adam",
    "unitsphere/best-1m": "best",
}
"""Recipe -> its arm in the record of what was tried at its size and budget."""


@pytest.mark.parametrize("name", TUNED)
def test_the_quickstart_s_rates_are_among_the_best_that_were_tried(name):
    config = load_recipe(name)
    tokens = str(config.train.steps * config.train.batch_tokens)
    record = read_json(REPOSITORY / "docs" / "results" / "tune-1m.json")
    rows = record["arms"][TUNED[name]][tokens]
    rates = {getattr(config.optim.rates, role) for role in ("embedding", "head", "scale")}
    own = [r for r in rows if r["point"] == {"lr": config.optim.lr, "others": next(iter(rates))}]
    assert len(rates) == len(own) == 1
    assert own[0]["loss"] < rows[0]["loss"] + 0.1


def test_the_readme_s_library_example_runs():
    """Its code as printed, with two steps in place of a hundred."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)
    assert "range(100)" in example
    names = {}
    exec(compile(example.replace("range(100)", "range(2)"), "README.md", "exec"), names)
    for constraint in constraints(names["model"]):
        weight = names["model"].get_parameter(constraint.parameter)
        assert (weight.norm(dim=constraint.dim) - 1).abs().max() < 1e-6
