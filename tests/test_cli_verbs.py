"""The verbs that report figures or text, on a small run, through the command line."""

import io
import json
import math
import os
import re
import shutil
import signal
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_recipe import tiny_recipe
from typed import printed, refused

from unitsphere.cli import main
from unitsphere.cli.chat import Chat, fitting, turn
from unitsphere.data.shards import Shards
from unitsphere.data.tokenizer import ByteTokenizer
from unitsphere.models.registry import build
from unitsphere.training.corpus import open_corpus
from unitsphere.training.load import load_run
from unitsphere.training.recipes import recipe_names

RECIPE = tiny_recipe("angpt", data={"tokenizer": "bpe:300"}, lr=2e-2, steps=20)
TEXT = "The cat sat on the mat, and that was that.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A text, and a run trained on it."""
    folder = tmp_path_factory.mktemp("verbs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("text.txt").write_text(TEXT * 100)
        Path("tiny.toml").write_text(RECIPE)
        assert main(["train", "tiny.toml", "--out", "run"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _here(request, monkeypatch, capsys):
    if "folder" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("folder"))
        capsys.readouterr()


def test_params_counts_every_recipe_without_allocating(capsys, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "to_empty", None)
    counts = printed(capsys, "params")
    assert [count["recipe"] for count in counts] == list(recipe_names())
    for count in counts:
        assert count["parameters"] == sum(count["by_role"].values())
    by_name = {count["recipe"]: count for count in counts}
    # The nGPT paper's Table 2, exactly.
    assert by_name["ngpt2024/gpt-0.5b"]["parameters"] == 468_239_360
    assert by_name["ngpt2024/ngpt-1b"]["parameters"] == 1_026_177_280
    assert by_name["ngpt2024/ngpt-1b"]["architecture"] == "ngpt"


def test_params_folds_the_ablations(capsys, monkeypatch):
    names = {"quickstart": ["quickstart/ngpt"], "p": ["quickstart/angpt", "p/ablations/x"]}
    monkeypatch.setattr("unitsphere.training.recipes.grouped_recipes", lambda: names)
    assert main(["params"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["quickstart/ngpt", "quickstart/angpt"]
    assert lines[4:] == ["and 1 ablations: unitsphere recipes --ablations lists them"]


def test_recipes_lists_papers_and_folds_their_ablations(capsys, monkeypatch):
    ablation = "ngpt2024/ablations/table6-row2-slerp"
    names = {"quickstart": ["quickstart/ngpt"], "ngpt2024": ["ngpt2024/ngpt-1b", ablation]}
    monkeypatch.setattr("unitsphere.training.recipes.grouped_recipes", lambda: names)
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert "ngpt2024: nGPT, arXiv 2410.01131\n  ngpt2024/ngpt-1b" in out
    assert "1,026.2M  1280×36 nGPT 1B of the nGPT paper\n" in out
    assert "and 1 ablations: --ablations lists them" in out
    found = printed(capsys, "recipes", "--ablations")
    assert [recipe["recipe"] for recipe in found] == [*names["quickstart"], *names["ngpt2024"]]
    assert [recipe["ablation"] for recipe in found] == [False, False, True]
    assert found[1]["parameters"] == 1_026_177_280


def test_params_of_a_file_takes_the_tokenizer_s_vocabulary(folder, capsys):
    (count,) = printed(capsys, "params", "tiny.toml")
    assert count["vocab_size"] == 320
    matrices = 16 * 32**2 + 2 * 320 * 32
    assert count["parameters"] == matrices + 2 * 32 + 320 + 2


def test_params_shows_each_setting_with_its_source(capsys):
    name = "ngpt2024/ablations/table5-row02-s_qk-scalar"
    changes = ["--model.n_layers", "2", "--model.s_u.init=1/L", "--train.steps", "100000"]
    found = printed(capsys, "params", name, "--show", *changes)
    assert (found["recipe"], found["n_layers"]) == (name, 2)
    assert found["schedule_area"] == pytest.approx(0.5, abs=1e-3)  # a cosine to 0
    shown = {one["key"]: (one["value"], one["source"]) for one in found["settings"]}
    assert shown["model.s_qk.form"] == ("scalar", f"recipe {name}")
    assert shown["data.context"] == (1024, "recipe ngpt2024/ablations/baseline")
    assert shown["model.d_model"] == (1024, "recipe ngpt2024/ngpt-0.5b")
    assert shown["model.n_layers"] == (2, "command line")
    assert shown["train.steps"] == (100000, "command line")
    assert shown["model.s_u.init"] == (0.5, 'derived: "1/L" (command line)')
    assert shown["model.bound"] == ("sphere", "default of ngpt")
    rates = {one["role"]: (one["optimizer"], one["lr"]) for one in found["roles"]}
    assert rates.keys() == {"embedding", "matrix", "scale", "head"}
    assert set(rates.values()) == {("Adam", shown["optim.lr"][0])}
    assert shown["train.seed"] == (0, "default")
    assert shown["train.precision"][1] == "derived (recipe ngpt2024/ngpt-0.5b)"
    assert main(["params", "quickstart/ngpt", "--show"]) == 0
    table = capsys.readouterr().out
    assert re.search(r'model.s_z.init +11.31\d+ +derived: "sqrt\(d\)" \(recipe', table)
    assert re.search(r"mean learning rate 0\.\d{4} of its peak \(schedule\.area\)", table)
    tokens = ["--train.tokens", "200e6", "--train.batch_tokens", "4096"]
    found = printed(capsys, "params", "quickstart/ngpt", "--show", *tokens)
    shown = {one["key"]: one["value"] for one in found["settings"]}
    assert (shown["train.steps"], shown["train.tokens"]) == (48828, None)
    assert main(["params", "quickstart/ngpt", "--show", *tokens, "--train.steps", "4"]) == 2
    assert "--train.steps or --train.tokens, not both" in capsys.readouterr().err
    assert main(["params", "--show"]) == 2
    assert "needs a recipe" in capsys.readouterr().err
    for asked_not in (["--show=False"], ["--show", "false"]):
        assert "settings" not in printed(capsys, "params", "quickstart/ngpt", *asked_not)[0]
    assert main(["params", "quickstart/ngpt", "--show", "--model.d_modle", "4"]) == 2
    assert "did you mean '--model.d_model'?" in capsys.readouterr().err


def test_params_as_a_table(capsys):
    assert main(["params", "ngpt2024/gpt-0.5b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["recipe", "parameters"]
    assert lines[2].split()[:2] == ["ngpt2024/gpt-0.5b", "468,239,360"]


def test_eval_reports_the_text_by_context(folder, capsys):
    found = printed(capsys, "eval", "run", "--data", "text.txt", "--context", "16", "64")
    assert set(found) == {
        *("run", "data", "split", "context", "by_context", "tasks"),
        *("loss", "perplexity", "bits_per_byte", "tokens", "bytes"),
    }
    assert (found["run"], found["data"], found["context"]) == ("run", "text.txt", 16)
    assert found["split"] is None
    assert found["bytes"] == len(TEXT) * 100
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    bits = found["loss"] * found["tokens"] / math.log(2)
    assert found["bits_per_byte"] == pytest.approx(bits / found["bytes"])
    assert list(found["by_context"]) == ["16", "64"]
    assert found["by_context"]["16"]["loss"] == found["loss"]
    assert found["by_context"]["64"]["loss"] != found["loss"]
    assert found["tasks"] == {}


def test_eval_of_jsonl_is_that_of_its_text(folder, capsys):
    Path("text.jsonl").write_text(json.dumps({"body": TEXT * 100}) + "\n")
    lines = printed(capsys, "eval", "run", "--data", "text.jsonl", "--field", "body")
    plain = printed(capsys, "eval", "run", "--data", "text.txt")
    assert lines == plain | {"data": "text.jsonl"}
    assert lines["by_context"] == {}


def test_eval_without_data_is_of_the_validation_split(folder, capsys):
    found = printed(capsys, "eval", "run")
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert found["loss"] == pytest.approx(last["val_loss"], rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(last["val_bits_per_byte"], rel=1e-6)
    text = str(Path("text.txt").absolute())
    assert (found["data"], found["split"], found["context"]) == (text, "validation", 16)


def test_a_prepared_folder_is_scored_on_its_validation_split(folder, capsys):
    """By `eval` and by `context`; the run's own validation split, prepared again, scores alike."""
    made = ["prepare", "text.txt", "--tokenizer", "run/tokenizer.json", "--out", "own-shards"]
    assert main(made) == 0
    capsys.readouterr()
    own = printed(capsys, "eval", "run")
    found = printed(capsys, "eval", "run", "--data", "own-shards")
    assert found == own | {"data": "own-shards"}
    argv = ["context", "run", "--context", "2", "4"]
    own = printed(capsys, *argv)["arms"]
    assert printed(capsys, *argv, "--data", "own-shards")["arms"] == own
    made = ["prepare", "text.txt", "--tokenizer", "run/tokenizer.json", "--out", "all"]
    assert main([*made, "--val_fraction", "0"]) == 0
    capsys.readouterr()
    assert "all has no validation split" in refused(capsys, "eval", "run", "--data", "all")


def test_what_train_validated_otherwise_is_said(folder, capsys):
    shutil.copytree("run", "part")
    config = json.loads(Path("part/config.json").read_text())
    config["train"]["eval_tokens"] = 8  # of 13
    Path("part/config.json").write_text(json.dumps(config))
    assert main(["eval", "part", "--context", "32"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "whole validation split, fp32; train validated on at most 8 tokens of it "
        "(train.eval_tokens), with a context of 16 tokens"
    )
    assert main(["eval", "part", "--context", "4", "--by_position"]) == 0
    assert (
        "pieces of 4 tokens of the documents of the validation split, fp32; train validated on at "
        "most 8 tokens of it (train.eval_tokens), with a context of 16 tokens, in windows that "
        "cross documents\n"
    ) in capsys.readouterr().out
    config["train"]["eval_tokens"] = 1_000_000  # more than the split has
    Path("part/config.json").write_text(json.dumps(config))
    assert main(["eval", "part"]) == 0
    assert "train validated" not in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["eval", "context"])
def test_binary_files_are_refused_before_any_work(folder, capsys, monkeypatch, verb):
    monkeypatch.setattr("unitsphere.training.load.load_run", None)
    monkeypatch.setattr("unitsphere.studies.context.load_run", None)
    files = {
        "x.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        "x.safetensors": b"\x40\0\0\0\0\0\0\0{}",
        "x.npy": b"\x93NUMPY\x01\0v\0",
        "x.gz": b"\x1f\x8b\x08",
    }
    for name, data in files.items():
        mixed = Path(f"mixed-{name}")
        mixed.mkdir(exist_ok=True)
        (mixed / "a.txt").write_text(TEXT)
        (mixed / name).write_bytes(data)
        assert str(mixed / name) in refused(capsys, verb, "run", "--data", str(mixed))


def test_eval_as_a_table(folder, capsys):
    assert main(["eval", "run", "--data", "text.txt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["context", "loss", "perplexity", "bits/byte", "tokens", "bytes"]
    assert lines[2].split()[0] == "16"


@pytest.mark.parametrize("dash", ["_", "-"])
def test_generate_understands_both_spellings(folder, capsys, dash):
    options = ["--max-tokens", "7", "--top-k", "9", "--top-p", "0.9", "--seed", "3"]
    options = [f"--{o[2:].replace('-', dash)}" if o.startswith("--") else o for o in options]
    (found,) = printed(capsys, "generate", "run", "--prompt", "The", *options)
    assert found["prompt"] == "The"
    assert found["tokens"] == 7 or found["stopped"]


def test_a_prompt_gives_the_same_text_alone(folder, capsys):
    argv = ["generate", "run", "--max-tokens", "12", "--seed", "5"]
    both = printed(capsys, *argv, "--prompt", "The cat sat", "--prompt", "")
    alone = printed(capsys, *argv[:-1], "6")
    assert [c["prompt"] for c in both] == ["The cat sat", ""]
    assert alone == both[1:]


def test_generate_prints_prompt_and_continuation(folder, capsys):
    argv = ["generate", "run", "--max-tokens", "5", "--temperature", "0", "--prompt", "--The cat"]
    (found,) = printed(capsys, *argv)
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert captured.out == f"--The cat{found['text']}\n"
    assert captured.err == ""


def test_generate_past_the_trained_context_says_so(folder, capsys):
    assert main(["generate", "run", "--max-tokens", "30", "--top-k", "1"]) == 0
    captured = capsys.readouterr()
    said = "note: the text has 31 tokens, and the model was trained on 16\n"
    assert captured.err == said
    screen = io.StringIO()
    with redirect_stdout(screen), redirect_stderr(screen):
        assert main(["generate", "run", "--max-tokens", "30", "--top-k", "1", "--stream"]) == 0
    assert screen.getvalue() == captured.out + said  # not in the last line of the text


def test_prepare_reports_its_counts(folder, capsys):
    argv = ["prepare", "text.txt", "--tokenizer", "bytes", "--out", "shards"]
    found = printed(capsys, *argv)
    assert found["out"] == "shards"
    assert found["tokenizer"]["spec"] == "bytes"
    assert found["train"]["bytes"] + found["val"]["bytes"] == len(TEXT) * 100
    assert found == printed(capsys, *argv)


def test_a_finished_run_is_not_trained_again(folder, capsys):
    before = Path("run/metrics.jsonl").read_bytes()
    assert main(["train", "tiny.toml", "--out", "run"]) == 0
    assert "finished" in "".join(capsys.readouterr())
    assert Path("run/metrics.jsonl").read_bytes() == before


def test_training_writes_samples(folder):
    assert "--- step 20" in Path("run/samples.txt").read_text()


def test_the_run_folder_follows_the_recipe():
    from unitsphere.cli.settings import split_recipe
    from unitsphere.cli.train import Train, default_out

    assert default_out("quickstart/ngpt") == Path("runs/quickstart/ngpt")
    assert default_out("my/own.toml") == Path("runs/own")
    line = ["--out", "x", "--train.steps=3", "a/b", "--optim.lr", "1"]
    rest = ["--out", "x", "--train.steps=3", "--optim.lr", "1"]
    assert split_recipe(line, Train) == ("a/b", rest)
    assert split_recipe(["--help"], Train) == (None, ["--help"])


def test_a_run_without_out_takes_a_folder_of_its_own(folder, capsys, tmp_path, monkeypatch):
    """Another config takes the next free folder, and the same command finds its own again."""
    text = Path("text.txt").absolute()
    (tmp_path / "tiny.toml").write_text(RECIPE.replace("text.txt", str(text)))
    monkeypatch.chdir(tmp_path)

    def lines(*argv: str) -> list[str]:
        assert main(["train", "tiny.toml", "--train.steps", "2", *argv]) == 0
        return capsys.readouterr().err.splitlines()

    assert not any("this run is in" in line for line in lines())
    other = lines("--optim.lr", "0.01", "--train.seed", "1")
    odd = "optim.lr: 0.02 -> 0.01, and 1 more"
    assert other[0] == f"runs/tiny holds another run ({odd}): this run is in runs/tiny-2"
    assert other[-1] == "  unitsphere report runs/tiny-2"
    Path("runs/tiny-3").mkdir()
    Path("runs/tiny-3/notes.txt").write_text("mine")
    assert lines("--train.seed", "1")[-1] == "  unitsphere report runs/tiny-4"
    shutil.rmtree("runs/tiny")
    again = lines("--optim.lr", "0.01", "--train.seed", "1", "--train.log_every", "5")
    assert "runs/tiny-2 is finished" in "".join(again)
    assert not Path("runs/tiny").exists()
    assert not any("this run is in" in line for line in lines("--train.seed", "2"))
    assert main(["train", "tiny.toml", "--train.seed", "3", "--out", "runs/tiny"]) == 2


def test_help_of_a_recipe_shows_its_own_defaults(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main(["train", "tiny.toml", "--help"])
    assert not stop.value.code
    text = " ".join(capsys.readouterr().out.split())
    for words in ("--model.d_model", "(default: 32)", "--optim.lr", "(default: 0.02)", "--out"):
        assert words in text


def test_too_little_gpu_memory_is_a_user_s_mistake(folder, capsys, monkeypatch):
    def out_of_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("unitsphere.training.run.train", out_of_memory)
    assert main(["train", "tiny.toml", "--out", "run"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("unitsphere: error: out of memory")
    assert "--train.micro_batch" in error


def test_prepare_reads_json_lines_from_standard_input(tmp_path, monkeypatch):
    lines = b'{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    out = tmp_path / "shards"
    assert main(["prepare", "-.jsonl", "--tokenizer", "bytes", "--out", str(out)]) == 0
    assert Shards.open(out, "train").n_documents + Shards.open(out, "val").n_documents == 3


def test_a_prompt_that_is_no_utf8_is_one_line(folder, capsys):
    assert main(["generate", str(folder / "run"), "--prompt", "a\udcff"]) == 2
    assert "is not valid UTF-8" in capsys.readouterr().err


def test_replay_shows_the_batch_of_a_step(folder, capsys):
    found = printed(capsys, "replay", "run", "--step", "7")
    model, tokenizer, config = load_run("run", "cpu")
    batch = open_corpus(config).batches.batch(6)
    assert [row["row"] for row in found["rows"]] == [*range(8)]
    for row, inputs, targets in zip(found["rows"], batch.inputs, batch.targets, strict=True):
        assert row["text"] == tokenizer.decode(inputs.tolist())
        assert row["loss"] == pytest.approx(model.loss(inputs[None], targets[None]).item())
    assert main(["replay", "run", "--step", "7"]) == 0
    assert "begins with" in capsys.readouterr().out
    for step in ("0", "21"):
        assert main(["replay", "run", "--step", step]) == 2
        assert f"has no step {step}: give one from 1 to 20" in capsys.readouterr().err


def test_generate_streams_what_it_would_print(folder, capsys):
    argv = ["generate", "run", "--prompt", "The", "--max_tokens", "20", "--min_p", "0.1"]
    assert main(argv) == 0
    whole = capsys.readouterr().out
    assert main([*argv, "--stream"]) == 0
    assert capsys.readouterr().out == whole
    assert main([*argv, "--stream", "--json"]) == 2
    assert "--stream" in capsys.readouterr().err
    assert main([*argv, "--stream", "--stop", ""]) == 2
    assert capsys.readouterr().out == ""


def test_generate_ends_before_a_stop_string(folder, capsys):
    argv = ["generate", "run", "--prompt", "The cat", "--max_tokens", "20", "--temperature", "0"]
    assert main(argv) == 0
    whole = capsys.readouterr().out
    stop = whole[10:12]
    assert main([*argv, "--stop", stop]) == 0
    assert capsys.readouterr().out == "The cat" + whole[7:].partition(stop)[0] + "\n"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max_tokens", "0", "max_tokens must be 1 or more"),
        ("--stop", "", "a stop string must not be empty"),
        ("--seed", str(2**63), "a seed must fit 64 bits"),
    ],
)
def test_chat_refuses_settings_before_anybody_writes(folder, capsys, option, value, message):
    assert message in refused(capsys, "chat", "run", option, value)


def test_chat_takes_turns_and_takes_them_back(folder, capsys, monkeypatch):
    argv = ["chat", "run", "--temperature", "0", "--max_tokens", "8", "--stop", "\\n"]

    def said(*lines: str) -> list[str]:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert main(argv) == 0
        return capsys.readouterr().out.split("\n")[:-1]

    (one,) = said("The cat")
    assert one
    assert said("The cat", "/undo", "The cat") == [one, one]
    assert said("The cat", "/new", "The cat") == [one, one]
    first, second = said("The cat", " and that")
    (again,) = said("The cat" + first + " and that")
    assert (first, second) == (one, again)
    assert said("/huh", "/quit", "The cat") == []
    assert said("The cat", "/show") == [one, "The cat" + one]
    monkeypatch.setattr("sys.stdin", io.StringIO("The cat\n and that\n/undo\n/new\n/huh\n"))
    assert main(argv) == 0
    told = capsys.readouterr().err
    assert f"the text ends: …The cat{one}".rstrip() in told
    assert "a new text" in told
    assert "unknown: /huh" in told


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_line_of_a_chat_that_is_no_utf8_is_one_line(folder, capsys, monkeypatch, errors):
    lines = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "utf-8", errors)
    monkeypatch.setattr("sys.stdin", lines)
    assert main(["chat", "run"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "unitsphere: error: standard input is not valid UTF-8: check its encoding"


def test_a_chat_longer_than_the_context_begins_with_a_whole_character():
    loaded: Any = SimpleNamespace(
        tokenizer=ByteTokenizer(), config=SimpleNamespace(data=SimpleNamespace(context=32))
    )
    for text in ("日本語" * 20, "a" + "日本語" * 20, "ab" + "日本語" * 20):
        found = fitting(loaded, text, 8)
        assert text.endswith(found)
        assert 20 < len(found.encode()) <= 32 - 8 - 1


def test_a_turn_of_a_chat_ends_where_learned_positions_do(capsys):
    """It ended the chat with an error, after it had written as many tokens."""
    sizes = {"vocab_size": 256, "d_model": 16, "n_layers": 1, "n_heads": 2}
    model = build("normformer", **sizes, positions="learned", max_positions=16)
    with torch.no_grad():
        model.E.weight[ord("a")] *= 9  # so that it writes letters
    data = SimpleNamespace(context=16)
    loaded: Any = SimpleNamespace(
        model=model, tokenizer=ByteTokenizer(), config=SimpleNamespace(data=data)
    )
    text = turn(Chat(Path("run"), max_tokens=64, temperature=0), loaded, "aaa", 0)
    assert text == "a" * 16
    assert capsys.readouterr().out == "a" * 13 + "\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_before_training_is_one_line_and_status_75(number, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    before = signal.getsignal(number)

    def load_recipe(name):
        os.kill(os.getpid(), number)

    monkeypatch.setattr("unitsphere.training.recipes.load_recipe", load_recipe)
    # Where the command does not handle the signal this does, and not the suite's end.
    signal.signal(number, lambda *_: None)
    try:
        with pytest.raises(SystemExit) as end:
            main(["train", "quickstart/ngpt"])
    finally:
        signal.signal(number, before)
    assert end.value.code == 75
    (line,) = capsys.readouterr().err.splitlines()
    name = signal.Signals(number).name
    assert line.startswith(f"unitsphere: {name} while not training: the same command ")


def test_the_area_of_a_schedule_and_a_dry_run_are_not_asked_for_at_once(capsys):
    message = refused(capsys, "train", "quickstart/ngpt", "--area", "--dry_run", "--json")
    assert "--area and --dry_run do not go together: give one" in message


def test_the_short_names_of_train_take_a_value(capsys):
    for area in ("--area=True", "--schedule.area=True", "--schedule.area"):
        assert main(["train", "quickstart/ngpt", "--verify=False", area]) == 0
        assert capsys.readouterr().out.startswith("schedule.area 0.5")
    assert main(["train", "quickstart/ngpt", "--verify=maybe"]) == 2
    assert "--data.verify must be True or False" in capsys.readouterr().err
