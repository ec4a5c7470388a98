"""Values and files that nobody should give: one line each, and nothing that a terminal obeys."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typed import refused

from unitsphere.cli import main
from unitsphere.cli.output import print_json, print_table
from unitsphere.data.tokenizer import load_tokenizer
from unitsphere.errors import UserError
from unitsphere.inference.generate import seeds_of
from unitsphere.report.render.text import harmless


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_a_seed_that_no_generator_takes(seed):
    with pytest.raises(UserError, match="a seed must fit 64 bits"):
        seeds_of(seed, 1)
    with pytest.raises(UserError, match="a seed must fit 64 bits"):
        seeds_of([seed], 1)


@pytest.mark.parametrize("verb", ["eval", "context"])
def test_a_context_that_no_memory_holds(capsys, verb):
    assert "at most 1,048,576" in refused(capsys, verb, "run", "--context", "100000000")


def test_a_tokenizer_that_fails_while_it_encodes(tmp_path):
    made = Tokenizer(models.WordLevel({"the": 0, "</s>": 1}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(UserError, match="cannot encode a text: WordLevel"):
            encode("another")


SHAPES = (
    [],
    {"data": [], "train": 5},
    {"architecture": ["gpt"], "train": {"steps": "many"}, "data": {"source": 5}},
    {"speedups": 5},
    {"search": []},
    {"table": "x"},
    {"best_lr": [1]},
    {"tokens_per_parameter": {}},
    {"divergence": None},
    {"arms": 7},
)


@pytest.mark.parametrize(
    "name", ["config.json", "results.json", "summary.json", "environment.json"]
)
def test_report_of_json_of_another_shape_is_a_page_or_one_line(tmp_path, capsys, name):
    for number, shape in enumerate(SHAPES):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(
            '{"step": 1, "loss": "x", "tokens": [], "time": {}}\n'
        )
        (folder / name).write_text(json.dumps(shape))
        assert main(["report", str(folder)]) in (0, 2)
        capsys.readouterr()


def test_what_a_terminal_obeys_is_not_printed(capsys, tmp_path):
    evil = "a\x1b[2Jb\x9bc\x07\u202ed"
    assert harmless(evil) == "a\ufffd[2Jb\ufffdc\ufffd\ufffdd"
    print_table([evil], [[evil], ["[bold]x[/bold]"]])
    print_json({evil: evil})
    out = capsys.readouterr().out
    assert not set("\x1b\x9b\x07") & set(out)
    assert "[bold]x[/bold]" in out
    assert json.loads(out[out.index("{") :]) == {evil: evil}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({evil: 1}))
    message = refused(capsys, "train", str(config), "--out", str(Path(tmp_path, "out")))
    assert not set("\x1b\x9b\x07") & set(message)
