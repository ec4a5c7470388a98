"""The command line itself: help at once, one line a mistake, exit statuses, pipes."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from tyro.conf import Positional, UseAppendAction, arg

from unitsphere import __version__
from unitsphere.cli import app, main
from unitsphere.cli.parse import describe, options, parse
from unitsphere.cli.settings import split_recipe
from unitsphere.cli.train import Train
from unitsphere.errors import UserError
from unitsphere.files import write_text

HEAVY = ["torch", "numpy", "tokenizers", "matplotlib", "rich", "tensorboard", "safetensors"]
PROGRAMS = (
    [str(Path(sys.executable).with_name("unitsphere"))],
    [sys.executable, "-m", "unitsphere"],
)


def one_error(capsys) -> str:
    """The message of the one line on stderr that reports a mistake."""
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("unitsphere: error: ")
    assert captured.out == ""
    return lines[0].removeprefix("unitsphere: error: ")


def test_help_and_mistakes_load_nothing_heavy():
    """One process for all: the first line that is not empty names who loaded what."""
    typed = [["--help"], ["--version"], ["trian"], ["generate", "--bogus"]]
    typed += [[verb, "--help"] for verb in app.VERBS]
    code = (
        "import sys; from unitsphere.cli import main\n"
        f"for argv in {typed!r}:\n"
        "    try: main(argv)\n"
        "    except SystemExit: pass\n"
        f"    print('loaded', argv, [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stdout.splitlines() if line.startswith("loaded ")]
    assert said == [f"loaded {argv} []" for argv in typed], done.stderr


def test_top_help_names_every_verb_and_fits_80_columns(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb, (_, does) in app.VERBS.items():
        assert verb in text
        assert does in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("verb", sorted(app.VERBS))
def test_help_of_a_verb_has_an_example_and_fits_80_columns(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    try:
        status = main([verb, "--help"])
    except SystemExit as stop:
        status = stop.code
    text = capsys.readouterr().out
    assert not status
    assert "example" in text
    assert f"unitsphere {verb}" in text.partition("example")[2]
    usage, *lines = text.splitlines()
    assert usage.startswith(f"usage: unitsphere {verb}")
    assert max(map(len, lines)) <= 80


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"unitsphere {__version__}\n"


def test_the_installed_program_and_the_module_answer_alike():
    for program in PROGRAMS:
        done = subprocess.run([*program, "--version"], capture_output=True, text=True, timeout=60)
        assert done.stdout == f"unitsphere {__version__}\n"


def test_without_a_verb_the_usage_is_shown(capsys):
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: unitsphere VERB")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["trian"], ["unknown verb 'trian'", "did you mean 'train'?"]),
        (["paint"], ["unknown verb 'paint'"]),
        (["evaluate"], ["unknown verb 'evaluate'", "did you mean 'eval'?"]),
        (["params", "quickstart/ngpt", "--model.d_model=64"], ["--model.d_model needs --show"]),
        (["--verbose"], ["unknown option '--verbose'"]),
        (["params", "--jsn"], ["'--jsn'", "did you mean '--json'?", "params --help"]),
        (["params", "--json=yes"], ["--json must be True or False, not 'yes'"]),
        (["prepare"], ["SOURCE", "--tokenizer", "--out"]),
        (["prepare", "a", "b", "--tokenizer", "bytes", "--out", "c"], ["unexpected", "b"]),
        (["prepare", "a", "--tokenizer"], ["--tokenizer needs a value"]),
        (["prepare", "a", "--tokenizer", "--out", "c"], ["--tokenizer needs a value"]),
        (["train", "quickstart/ngpt", "--out", "--dry_run"], ["--out needs a value"]),
        (["train", "quickstart/ngpt", "--data.field", "--help"], ["--data.field needs a value"]),
        (
            ["train", "quickstart/ngpt", "--model.s_z.init", "--train.steps", "5"],
            ["--model.s_z.init needs a value: a number"],
        ),
        (["generate"], ["generate needs RUN"]),
        (["generate", "r", "--top-k", "x"], ["--top_k must be an integer or None, not 'x'"]),
        (["generate", "r", "-p", "x"], ["unknown option '-p'"]),
        (
            ["eval", "r", "--data", "f", "--context", "1", "many"],
            ["--context", "an integer", "1 many"],
        ),
        (["train"], ["needs a recipe", "quickstart/ngpt"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line_and_status_2(argv, words, capsys):
    assert main(argv) == 2
    message = one_error(capsys)
    for word in words:
        assert word in message


@pytest.mark.parametrize("argv", [["--help"], ["doctor", "--help"], ["doctor"]], ids=" ".join)
def test_a_broken_pipe_is_silent(argv):
    read, write = os.pipe()
    os.close(read)
    done = run_with_stdout(write, *argv)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        done = run_with_stdout(full, "--help")
    assert done.stderr == "unitsphere: error: cannot use the output: No space left on device\n"
    assert done.returncode == 2


def run_with_stdout(stdout, *argv: str) -> subprocess.CompletedProcess[str]:
    """The program with its output going to a file or a descriptor."""
    return subprocess.run(
        [sys.executable, "-m", "unitsphere", *argv],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )


def test_a_file_that_cannot_be_replaced_has_its_own_name(monkeypatch, tmp_path, capsys):
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr("unitsphere.cli.doctor.run", lambda argv: write_text(place, "a page"))
    assert main(["doctor"]) == 2
    assert one_error(capsys) == f"cannot use {place}: Is a directory"
    assert list(tmp_path.iterdir()) == [place]


def test_an_interrupted_verb_ends_with_status_130(monkeypatch, capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr("unitsphere.cli.doctor.run", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "unitsphere: interrupted\n"


INTERRUPTED_IMPORT = """
import sys
class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "unitsphere.config":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
"""


@pytest.mark.parametrize("program", PROGRAMS, ids=["program", "module"])
def test_an_interruption_while_modules_are_imported_is_one_line_too(program, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_IMPORT)  # Python imports it first
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*program, "doctor"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (130, "unitsphere: interrupted\n")


@dataclasses.dataclass(frozen=True)
class Inner:
    width: int = 8
    """a number"""
    kind: Literal["cosine", "linear"] = "cosine"
    fast: bool = False
    quiet: bool | None = None
    rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Outer:
    """A verb."""

    name: Annotated[Positional[str], arg(metavar="NAME")]
    """what it is about"""
    inner: Inner = dataclasses.field(default_factory=Inner)
    say: UseAppendAction[list[str]] = dataclasses.field(default_factory=list)
    sizes: tuple[int, ...] = ()
    out: Path = Path("here")
    json: bool = False


def test_options_are_the_leaves_of_the_dataclass():
    assert list(options(Outer)) == [
        *("name", "inner.width", "inner.kind", "inner.fast", "inner.quiet", "inner.rate"),
        *("say", "sizes", "out", "json"),
    ]


def test_values_of_every_kind_are_read():
    line = "n --inner.width=9 --inner.rate 3e-2 --say --x --say= --say -1 --sizes 1 2 --json"
    parsed = parse(Outer, line.split(), "verb")
    inner = Inner(width=9, rate=0.03)
    assert parsed == Outer("n", inner, ["--x", "", "-1"], (1, 2), Path("here"), True)
    assert parse(Outer, ["n", "--say=--json"], "verb").say == ["--json"]


def test_an_option_of_several_values_may_come_again():
    parsed = parse(Outer, ["n", "--sizes", "1", "2", "--json", "--sizes", "3"], "verb")
    assert parsed.sizes == (1, 2, 3)


def test_a_boolean_is_true_by_its_name_or_what_follows_it():
    def fast(line: str) -> tuple[bool, bool]:
        parsed = parse(Outer, line.split(), "verb")
        return parsed.inner.fast, parsed.json

    assert fast("n --inner.fast True --json False") == (True, False)
    assert fast("n --inner.fast true --json") == (True, True)
    assert fast("n --inner.fast --json=false") == (True, False)
    assert fast("--inner.fast n") == (True, False)
    with pytest.raises(UserError, match=r"--json must be True or False, not 'maybe'"):
        fast("n --json=maybe")


def test_where_no_words_are_taken_what_follows_a_boolean_is_its_value():
    assert parse(Inner, ["--fast", "--width", "3"], "verb") == Inner(3, fast=True)
    with pytest.raises(UserError, match=r"--fast must be True or False, not 'maybe'"):
        parse(Inner, ["--fast", "maybe"], "verb")
    assert parse(Inner, ["--quiet", "--width", "3"], "verb") == Inner(3, quiet=True)
    assert parse(Inner, ["--quiet", "false"], "verb").quiet is False
    assert parse(Inner, ["--quiet=none"], "verb", default=Inner(quiet=True)).quiet is None


def test_help_shows_no_empty_default_and_each_flag_once(capsys):
    with pytest.raises(SystemExit):
        parse(Outer, ["--help"], "verb")
    out = capsys.readouterr().out
    assert "(default: 8)" in out
    assert not re.search(r"default:\s*(None|\W*\))", out)
    assert "--no" not in out


@pytest.mark.parametrize(
    ("line", "recipe"),
    [
        ("quickstart/ngpt --optim.muon_head", "quickstart/ngpt"),
        ("--optim.muon_head quickstart/ngpt", "quickstart/ngpt"),
        ("--optim.muon_head False quickstart/ngpt", "quickstart/ngpt"),
        ("--train.compile quickstart/ngpt", "quickstart/ngpt"),
        ("--model.qk_norm --optim.lr 3 my.toml", "my.toml"),
        ("--optim.lr 3", None),
        ("--dry_run --world-size 4 my.toml", "my.toml"),
    ],
)
def test_the_recipe_is_found_wherever_it_stands(line, recipe):
    assert split_recipe(line.split(), Train)[0] == recipe


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("n --inner.width wide", "--inner.width must be an integer, not 'wide'"),
        ("n --inner.kind cubic", "--inner.kind must be one of cosine, linear, not 'cubic'"),
        ("n --inner.rate fast", "--inner.rate must be a number or None, not 'fast'"),
        ("n --width 3", "unknown option '--width' (did you mean '--inner.width'?)"),
        ("n --inner.widht 3", "unknown option '--inner.widht' (did you mean '--inner.width'?)"),
        ("n --sizes a", "--sizes must be an integer, or several"),
        ("", "verb needs NAME"),
    ],
)
def test_what_tyro_refuses_is_told_in_a_line(line, message):
    with pytest.raises(UserError) as caught:
        parse(Outer, line.split(), "verb")
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("; see `unitsphere verb --help`")


def test_types_are_described_in_words():
    assert describe(Literal["a", "b"]) == "one of a, b"
    assert describe(int | None) == "an integer or None"
    assert describe(Path) == "a path"
    assert describe(str) == "text"


def test_doctor_reports_what_is_there(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    installed = {package["name"]: package for package in report["packages"]}
    assert report["unitsphere"] == __version__
    assert installed["torch"]["version"]
    assert installed["torch"]["extra"] is None
    assert installed["pytest"]["extra"] == "dev"
    assert report["device"] in ("cpu", "cuda")
    assert report["precision"] in ("fp32", "bf16")
    assert report["threads"] >= 1


@pytest.mark.parametrize(
    ("gone", "commands"),
    [
        (["ruff", "twine"], ["pip install 'unitsphere[dev,release]'"]),
        (["rich"], ["pip install 'unitsphere'"]),
        ([], []),
    ],
)
def test_doctor_says_in_a_line_how_to_get_all_that_is_missing(gone, commands, monkeypatch, capsys):
    monkeypatch.setattr("unitsphere.cli.doctor._version", lambda n: None if n in gone else "1")
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == commands
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.count(" missing ") == len(gone)
    assert re.findall("\nmissing packages come with: (.*)", out) == commands


def test_a_section_of_which_no_option_is_given_has_its_defaults():
    from unitsphere.cli.parse import parse
    from unitsphere.cli.quickstart import Changes, Quickstart

    assert parse(Quickstart, [], "quickstart").train == Changes()
    assert parse(Quickstart, ["--train.steps", "3"], "quickstart").train == Changes(steps=3)
