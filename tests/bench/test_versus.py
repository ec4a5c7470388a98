"""benchmarks/versus: contenders are timed and read as they should be. The peers here are fakes."""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks" / "versus"


def loaded(name: str, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def process(monkeypatch):
    return loaded("process", monkeypatch)


@pytest.fixture
def shakespeare(monkeypatch, process):
    return loaded("shakespeare", monkeypatch)


BUSY = """
import sys, time
print("one")
end = time.process_time() + 0.3
while time.process_time() < end: pass
print("two", file=sys.stderr)
time.sleep(0.2)
"""


def test_lines_have_the_time_since_the_start_of_the_process(process, tmp_path):
    trace = process.traced([sys.executable, "-c", BUSY], tmp_path, None, tmp_path / "log")
    first, second = trace.lines
    assert (first.text, second.text) == ("one", "two")
    assert 0 < first.wall < second.wall < trace.wall  # a line is seen some time after it is written
    assert first.cpu < second.cpu <= trace.cpu + 0.01  # two clocks, one with ticks of 10 ms
    assert trace.cpu >= 0.29  # BUSY's own
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_a_contender_that_fails_has_no_figures(process, tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        process.traced(["false"], tmp_path, None, tmp_path / "log")


def test_nanogpt_s_validations_are_read(shakespeare, process):
    said = [
        "tokens per iteration will be: 768",
        "step 0: train loss 4.1958, val loss 4.1960",
        "iter 0: loss 4.1961, time 2000.00ms, mfu -100.00%",
        "step 250: train loss 1.8100, val loss 1.8799",
        "step 500: train loss 1.7000, val loss 1.7500",
    ]
    lines = [process.Line(10.0 * n, 1.0 * n, text) for n, text in enumerate(said)]
    scores = shakespeare.nanogpt_scores(process.Trace(lines, 60.0, 6.0))
    assert [score.loss for score in scores] == [4.196, 1.8799, 1.75]
    assert process.first_at(scores, 1.88) == process.Score(30.0, 3.0, 1.8799)
    assert process.first_at(scores, 1.5) is None


PREPARE = "open('val.bin', 'w').write(open('input.txt').read()[-3:])"
TRAIN = (
    "print('step 0: train loss 3.1, val loss 3.0'); print('step 9: train loss 1.8, val loss 1.85')"
)


def test_both_run_in_turns_and_no_run_is_repeated(shakespeare, tmp_path, monkeypatch, capsys):
    clone, data = tmp_path / "nanoGPT", tmp_path / "nanoGPT" / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    (data / "prepare.py").write_text(PREPARE)
    (clone / "train.py").write_text(TRAIN)
    (tmp_path / "nanogpt_score.py").write_text("print(1.9)")
    (tmp_path / "text.txt").write_text("abcdefghij")
    monkeypatch.setattr(shakespeare, "HERE", tmp_path)
    ran = []

    def ours(options, out):
        ran.append(out.name)
        return {"wall": 9.0, "cpu": 8.0, "to_target": {"cpu": 7.0, "wall": 8.6, "loss": 1.8},
                "last": {"loss": 1.8}, "whole_split": 1.81}  # fmt: skip

    monkeypatch.setitem(shakespeare.CONTENDERS, "ours", ours)
    out = tmp_path / "out"
    argv = ["--nanogpt", str(clone), "--text", str(tmp_path / "text.txt"), "--out", str(out)]
    shakespeare.main([*argv, "--repeats", "2"])
    shakespeare.main([*argv, "--repeats", "2"])
    assert ran == ["ours-0", "ours-1"]
    assert ((out / "train.txt").read_text(), (out / "val.txt").read_text()) == ("abcdefghi", "j")
    found = json.loads((out / "nanogpt-1.json").read_text())
    assert found["to_target"]["loss"] == found["last"]["loss"] == 1.85
    assert found["whole_split"] == 1.9
    table = capsys.readouterr().out
    assert "| ours | 2 | 7 | 9 | 8 | 9 | 1.800 | 1.810 |" in table.replace("  ", " ")


def test_ours_at_other_steps_and_another_rate_is_a_run_of_its_own(
    shakespeare, process, tmp_path, monkeypatch, capsys
):
    commands, out = [], tmp_path / "out"

    def traced(command, cwd, core, log):
        commands.append(command)
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text('{"val_loss": 1.7}\n')
        return process.Trace([], 9.0, 8.0)

    said = subprocess.CompletedProcess([], 0, stdout='{"loss": 1.71}')
    monkeypatch.setattr(shakespeare, "traced", traced)
    monkeypatch.setattr(shakespeare.subprocess, "run", lambda *words, **how: said)
    (tmp_path / "text.txt").write_text("abcdefghij")
    argv = ["--nanogpt", str(tmp_path), "--text", str(tmp_path / "text.txt"), "--out", str(out)]
    argv += ["--only", "ours", "--json", str(tmp_path / "all.json")]
    shakespeare.main(argv)
    shakespeare.main([*argv, "--steps", "450", "--lr", "2e-2"])
    assert len(commands) == 2
    assert not any(word.startswith(("--train.steps", "--optim.lr")) for word in commands[0])
    assert {"--train.steps=450", "--optim.lr=0.02"} <= set(commands[1])
    assert [path.name for path in sorted(out.glob("*.json"))] == [
        "ours-0.json",
        "ours-450-0.02-0.json",
    ]
    runs = json.loads((tmp_path / "all.json").read_text())
    assert set(runs) == {"ours-0", "ours-450-0.02-0"}
    assert (runs["ours-450-0.02-0"]["steps"], runs["ours-450-0.02-0"]["lr"]) == (450, 0.02)
    assert (runs["ours-0"]["steps"], runs["ours-0"]["lr"]) == (140, 0.028)
    table = capsys.readouterr().out.replace("  ", " ")
    assert "| ours | 1 |" in table
    assert "| ours-450-0.02 | 1 |" in table


def test_our_recipe_has_the_sizes_of_nanogpt_s_line(shakespeare):
    from unitsphere.training.recipes import load_recipe

    config = load_recipe(str(FOLDER / "shakespeare.toml"))
    line = dict(x[2:].split("=") for x in shakespeare.NANOGPT.split() if x.startswith("--"))
    assert config.data.context == int(line["block_size"])
    assert config.model.n_layers == int(line["n_layer"])
    assert config.model.d_model == int(line["n_embd"])
    asked = int(line["eval_iters"]) * int(line["batch_size"]) * int(line["block_size"])
    assert config.train.eval_tokens == asked
    assert config.data.tokenizer == "bytes"


@pytest.fixture
def contenders(monkeypatch, process):
    return loaded("contenders", monkeypatch)


@pytest.fixture
def wiki(monkeypatch, contenders):
    return loaded("wiki", monkeypatch)


@pytest.fixture
def options(wiki, tmp_path):
    for name in ("train", "dev"):
        rows = [json.dumps({"text": f"{name} {n} " * 40}) for n in range(5)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    argv = ["--nanogpt", str(tmp_path), "--nanochat", str(tmp_path), "--minutes", "1", "2"]
    argv += ["--out", str(tmp_path / "out")]
    files = ["--train", str(tmp_path / "train.jsonl"), "--validation", str(tmp_path / "dev.jsonl")]
    found = wiki.parse([*argv, *files])
    found.out.mkdir()
    return found


def fake(wiki, monkeypatch, parameters=1000, per_step=0.5, start_up=10.0):
    """Contenders whose loss falls with the steps and is lowest at four times their rate."""
    asked = []

    def train(options, steps, rate, out):
        asked.append((steps, rate))
        return [str(steps), str(rate)], out

    def traced(command, cwd, core, log):
        *settings, steps, _rate = command
        assert tuple(settings) == wiki.KEEP_MEMORY
        return sys.modules["process"].Trace([], 0.0, start_up + per_step * int(steps))

    def score(options, trace, out):
        steps, rate = asked[-1]
        return 2 + 10 / steps + abs(rate - 4e-3)

    contender = sys.modules["contenders"].Contender(
        1e-3, (1, 2, 4), train, lambda trace, out: parameters, score
    )
    monkeypatch.setattr(wiki, "traced", traced)
    for name in wiki.CONTENDERS:
        monkeypatch.setitem(wiki.CONTENDERS, name, contender)
    return asked


def test_steps_fill_the_minutes_and_the_rate_is_the_best_that_was_tried(
    wiki, options, monkeypatch, capsys
):
    asked = fake(wiki, monkeypatch)
    assert wiki.steps_for(wiki.OURS, options, 1) == 100
    assert wiki.tuned_rate(wiki.OURS, options) == 4e-3
    asked.clear()
    rows = wiki.rows_of(wiki.OURS, options, tokens_per_byte=0.5)
    assert [row[:4] for row in rows] == [
        [wiki.OURS, "as shipped", "0.001", "1,000"],
        [wiki.OURS, "tuned", "0.004", "1,000"],
    ]
    assert rows[1][4] == f"{(2 + 10 / 100) * 0.5 / 0.6931472:.4f}"
    assert asked == [(220, 1e-3), (220, 4e-3)]  # the rest was known


def test_lengths_in_steps_are_single_runs_at_one_rate(wiki, options, monkeypatch):
    asked = fake(wiki, monkeypatch)
    options.steps = [50, 70]
    [row] = wiki.rows_of(wiki.OURS, options, tokens_per_byte=0.5)
    assert row[:4] == [wiki.OURS, "one run", "0.001", "1,000"]
    assert asked == [(50, 1e-3), (70, 1e-3)]
    options.rate = 3e-3
    assert wiki.rows_of("nanochat", options, tokens_per_byte=0.5)[0][2] == "0.003"
    assert asked[2:] == [(50, 3e-3), (70, 3e-3)]


def test_another_decay_of_ours_is_a_run_of_its_own(wiki, contenders, options, monkeypatch):
    def words(name):
        (options.out / f"compiled-ours-{name}").mkdir(exist_ok=True)
        return contenders.CONTENDERS[name].train(options, 9, 4e-3, options.out)[0]

    assert not any("weight_decay" in word for word in words("gpt-plus-peri"))
    options.decay = 1.4
    assert "--optim.weight_decay=1.4" in words("gpt-plus-peri")
    fake(wiki, monkeypatch)
    for name in ("gpt-plus-peri", "nanochat"):
        wiki.measured(name, options, 9, 4e-3)
    assert {path.stem for path in options.out.glob("*-9-*.json")} == {
        "gpt-plus-peri-9-0.004-decay-1.4",
        "nanochat-9-0.004",
    }


def test_another_seed_is_a_run_of_its_own_for_ours_and_nanochat(
    wiki, contenders, options, monkeypatch, capsys
):
    for cache in ("ours-gpt-plus-peri", "nanochat"):
        (options.out / f"compiled-{cache}").mkdir()
    options.seed = 1
    for name, word in (("gpt-plus-peri", "--train.seed=1"), ("nanochat", "--seed=1")):
        assert word in contenders.CONTENDERS[name].train(options, 9, 4e-3, options.out)[0]
    fake(wiki, monkeypatch)
    wiki.measured("nanochat", options, 9, 4e-3)
    assert (options.out / "nanochat-9-0.004-seed-1.json").exists()
    argv = ["--train", "t", "--validation", "d", "--contenders", "trainer", "best", "--seed", "1"]
    with pytest.raises(SystemExit):
        wiki.parse(argv)
    assert "--seed is of ours and nanochat, not of trainer" in capsys.readouterr().err


@pytest.fixture
def nanochat_peer(monkeypatch):
    return loaded("nanochat_peer", monkeypatch)


def test_nanochat_s_own_seed_is_replaced(nanochat_peer):
    def compute_init(device):
        torch.manual_seed(42)
        return device

    def first(function):
        assert function("cpu") == "cpu"
        return torch.rand(1)

    own, other = first(compute_init), first(nanochat_peer.seeded(compute_init, 1))
    torch.manual_seed(1)
    assert own != other == torch.rand(1)


def test_a_rate_is_of_runs_whose_steps_are_given(wiki, capsys):
    argv = ["--train", "t", "--validation", "d", "--contenders", "best", "--rate", "1"]
    with pytest.raises(SystemExit):
        wiki.parse(argv)
    assert "give --steps too" in capsys.readouterr().err
    assert wiki.parse([*argv, "--steps", "9"]).rate == 1


def test_a_peer_without_its_clone_gets_a_clear_line(wiki, capsys):
    argv = ["--train", "train.jsonl", "--validation", "dev.jsonl"]
    wiki.parse([*argv, "--contenders", "trainer", "gpt-plus-muon"])
    with pytest.raises(SystemExit):
        wiki.parse([*argv, "--contenders", "nanochat"])
    assert "contender nanochat: give --nanochat, a clone of it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "cache", "said"),
    [
        ("nanochat", "nanochat", ["{n}", "0.02"]),
        ("litgpt", "litgpt", ["{n}", "0.02"]),
        ("gpt-plus-shift", "ours-gpt-plus-shift", ["--train.steps={n}", "--train.compile=True"]),
    ],
)
def test_a_contender_compiles_once_before_the_clock_starts(
    name, cache, said, contenders, options, monkeypatch
):
    ran = []

    def run(command, **how):
        ran.append((command, how["cwd"]))
        (options.out / f"compiled-{cache}").mkdir()

    monkeypatch.setattr(contenders.subprocess, "run", run)
    for _ in range(2):
        command, where = contenders.CONTENDERS[name].train(options, 40, 0.02, options.out / "run")
        assert command[1] == f"TORCHINDUCTOR_CACHE_DIR={options.out / f'compiled-{cache}'}"
        assert {word.format(n=40) for word in said} <= set(command)
    [(first, folder)] = ran
    assert folder == where
    assert first[:2] == command[:2]
    assert {word.format(n=1) for word in said} <= set(first)


@pytest.mark.parametrize(
    ("peer", "said", "count"),
    [
        ("nanochat", ["wte                     : 131,072", "total      : 1,310,802"], 1_310_802),
        ("litgpt", ["Seed set to 42", "Total parameters: 1,298,016"], 1_298_016),
        ("nanogpt", ["number of parameters: 1.27M", "more"], 1_270_000 + 256 * 152),
    ],
)
def test_a_peer_s_parameters_are_read(peer, said, count, contenders, process):
    trace = process.Trace([process.Line(1.0, 1.0, text) for text in said], 2.0, 2.0)
    assert contenders.CONTENDERS[peer].parameters(trace, Path()) == count


@pytest.mark.parametrize("rate", [1e-4, 3.2e-2])
def test_the_best_rate_has_a_worse_one_on_either_side(rate, wiki, options, monkeypatch):
    asked = fake(wiki, monkeypatch)
    far = dataclasses.replace(wiki.CONTENDERS[wiki.OURS], rate=rate)
    monkeypatch.setitem(wiki.CONTENDERS, wiki.OURS, far)
    best = wiki.tuned_rate(wiki.OURS, options)
    assert 2.8e-3 < best < 5.7e-3
    assert {best / 2, 2 * best} <= {tried for _, tried in asked}


def test_contenders_of_other_sizes_are_refused(wiki, options, monkeypatch):
    fake(wiki, monkeypatch)
    wiki.check_sizes(options)
    large = wiki.CONTENDERS[wiki.OURS]
    large = dataclasses.replace(large, parameters=lambda trace, out: 1021)
    monkeypatch.setitem(wiki.CONTENDERS, "trainer", large)
    for path in options.out.glob("trainer-*.json"):
        path.unlink()
    with pytest.raises(SystemExit, match="trainer has 1,021 parameters, ours 1,000"):
        wiki.check_sizes(options)


def test_peers_get_the_same_tokens(wiki, options, monkeypatch):
    import numpy as np

    from unitsphere.data.shards import Shards

    monkeypatch.setattr(wiki, "TOKENIZER", "bytes")
    per_byte = wiki.prepare_tokens(options)
    for split in ("train", "val"):
        flat = np.fromfile(options.out / "tokens" / f"{split}.bin", dtype=np.uint16)
        assert flat.tolist() == Shards.open(options.out / "shards", split)[:].tolist()
    tokens = Shards.open(options.out / "shards", "val")
    assert per_byte == tokens.n_tokens / tokens.n_bytes > 1  # separators
