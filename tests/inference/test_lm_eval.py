"""Tasks of lm-evaluation-harness on a run trained here, and on its export through transformers."""

import importlib.util
import json
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_recipe import tiny_recipe
from typed import printed

import unitsphere
from unitsphere.cli import main
from unitsphere.data.tokenizer import ByteTokenizer
from unitsphere.errors import UserError
from unitsphere.inference import lm_eval_tasks
from unitsphere.training.folder import read_evaluations

pytest.importorskip("lm_eval")
os.environ["HF_HUB_OFFLINE"] = "1"
from unitsphere.inference.lm_eval_files import shipped_tasks
from unitsphere.inference.lm_eval_model import HarnessLM, read_settings
from unitsphere.inference.lm_eval_tasks import figures, run_tasks

CONTEXT = 96
RECIPE = tiny_recipe(
    "ngpt",
    model={"n_layers": 2, "n_heads": 4, "n_kv_heads": 2},
    data={"tokenizer": "bpe:300", "context": CONTEXT},
    lr=2e-2,
    steps=30,
    batch_tokens=384,
)
WORDS = ["the cat", "a dog", "the old man", "my sister", "a bird", "the rain", "our house"]
ENDS = ["sat on the mat.", "ran away.", "was green.", "sang a song."]
LINES = [f"{word} = {end}\n" for word in WORDS for end in ENDS]
CHOICES = {"text": ENDS[:3], "label": ["A", "B", "C"]}
ITEMS = {
    "hellaswag": {"query": "{0}: It", "choices": ENDS, "gold": 1},
    "piqa": {"goal": "{0}?", "sol1": ENDS[0], "sol2": ENDS[1], "label": 0},
    "winogrande": {
        "sentence": "{0} ran because _ was late.",
        "option1": "she",
        "option2": "the dog",
        "answer": "2",
    },
    "arc_easy": {"question": "{0}?", "choices": CHOICES, "answerKey": "B"},
    "arc_challenge": {"question": "Why {0}?", "choices": CHOICES, "answerKey": "C"},
    "openbookqa": {"question_stem": "{0}", "choices": CHOICES, "answerKey": "A"},
    "lambada": {"text": "{0} sat on the old mat"},
    "copa": {
        "premise": "{0} sang.",
        "choice1": "The rain fell.",
        "choice2": "It ran.",
        "question": "cause",
        "label": 1,
    },
    "sciq": {
        "question": "{0}?",
        "support": "{0} sat. " * 12,  # longer than the context: cut from its begin
        "distractor1": "cat",
        "distractor2": "dog",
        "distractor3": "mat",
        "correct_answer": "green",
    },
    "storycloze": {
        **{f"InputSentence{n}": f"{{0}} sang song {n}." for n in range(1, 5)},
        "RandomFifthSentenceQuiz1": ENDS[0],
        "RandomFifthSentenceQuiz2": ENDS[1],
        "AnswerRightEnding": 2,
    },
    "wsc273": {
        "text": "{0} saw the dog.  It ran with his mat.",
        "pronoun": "his",
        "pronoun_loc": -1,
        "options": ["The cat", "Ann"],
        "label": 1,
    },
    "wsc": {
        "text": "the dog sat with {0}, so it ran .",
        "target": {"span1_text": "the dog", "span2_text": "it", "span2_index": -1},
        "label": True,
    },
    "translation": {"source": "{0}", "target": ENDS[0]},
    "text": {"text": "{0} sat on the mat. Ünïcode too! " * 12},
}


OTHERS = ("storycloze", "wsc", "wsc273")
"""Tasks that are not among those of zero_shot."""


def filled(task: str, word: str) -> dict:
    """An item of a task; the places of pronouns are those in the words that it has."""
    item = {k: v.replace("{0}", word) if isinstance(v, str) else v for k, v in ITEMS[task].items()}
    if task == "wsc273":
        item["pronoun_loc"] = item["text"].replace("  ", " ").index("his")
    if task == "wsc":
        item["target"] = item["target"] | {"span2_index": item["text"].split().index("it")}
    return item


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """`run`, exported to `hf`, and a JSONL file a task in `data`."""
    folder = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("text.txt").write_text("".join(LINES) * 30, encoding="utf-8")
        Path("tiny.toml").write_text(RECIPE)
        assert main(["train", "tiny.toml", "--out", "run"]) == 0
        assert main(["export", "run", "--out", "hf"]) == 0
        Path("data").mkdir()
        for task in ITEMS:
            name = {"text": "texts", "translation": "pairs"}.get(task, f"{task}_val")
            lines = "".join(json.dumps(filled(task, word)) + "\n" for word in WORDS)
            Path("data", f"{name}.jsonl").write_text(lines)
    return folder


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    capsys.readouterr()


@pytest.fixture(scope="module")
def ours(folder) -> HarnessLM:
    run = unitsphere.load(folder / "run")
    return HarnessLM(run.model, run.tokenizer, CONTEXT, batch_tokens=200)


def samples(lm, tasks: list[str], data: str = "data") -> dict[str, list[dict]]:
    """Every item of each task with what was asked and answered, in the file's order."""
    found = run_tasks(lm, tasks, data=data, samples=True)["samples"]
    return {task: sorted(items, key=lambda item: item["doc_id"]) for task, items in found.items()}


@pytest.fixture(scope="module")
def pairs(folder, ours) -> dict[str, tuple[list[dict], list[dict]]]:
    """Task -> its items by this package, and by the harness's own backend from the export."""
    from lm_eval.models.huggingface import HFLM

    hf = HFLM(str(folder / "hf"), device="cpu", batch_size=3, trust_remote_code=True)
    assert hf.max_length == CONTEXT
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for tasks, data in [
            (["zero_shot", *OTHERS], "data"),
            (["translation"], "data/pairs.jsonl"),
            (["text"], "data/texts.jsonl"),
        ]:
            # That backend scores the separator of rolling texts unless it is told not to.
            hf.add_bos_token = False if tasks == ["text"] else None
            mine, other = samples(ours, tasks, data), samples(hf, tasks, data)
            found |= {task: (mine[task], other[task]) for task in other}
    return found


def numbers(resps) -> list[float]:
    """Every log-likelihood in an item's nested answers."""
    if isinstance(resps, list | tuple):
        return [number for one in resps for number in numbers(one)]
    return [float(resps)]


def test_every_shipped_task_is_compared_with_the_export(pairs):
    assert sorted(pairs) == sorted(ITEMS) == list(shipped_tasks())


@pytest.mark.parametrize("task", [name for name in ITEMS if name != "translation"])
def test_every_item_is_that_of_the_export_through_the_harness_s_backend(pairs, task):
    mine, other = pairs[task]
    assert len(mine) == len(other) == len(WORDS)
    for one, two in zip(mine, other, strict=True):
        assert one["arguments"] == two["arguments"]
        assert numbers(one["resps"]) == pytest.approx(numbers(two["resps"]), abs=1e-4, rel=1e-5)
        for metric in ("acc", "acc_norm"):
            assert one.get(metric) == two.get(metric)
    assert len({tuple(numbers(one["resps"])) for one in mine}) > 1  # items differ


def asked(pairs, task: str) -> list[tuple[str, str]]:
    """Context and continuation of each answer to a task's first item."""
    (document,) = [one for one in pairs[task][0] if one["doc_id"] == 0]
    return [tuple(one) for one in document["arguments"]]


def test_the_cloze_and_the_schemas_are_asked_as_the_harness_does(pairs):
    story = " ".join(f"the cat sang song {n}." for n in range(1, 5))
    assert asked(pairs, "storycloze") == [(story, f" {end}") for end in ENDS[:2]]
    scored = [one["target"] for one in pairs["storycloze"][0]]
    assert {int(target) for target in scored} == {1}
    begin = "the cat saw the dog. It ran with "
    rest = "  mat."  # the harness puts a space before what follows the pronoun
    assert asked(pairs, "wsc273") == [(f"{begin}the cat's", rest), (f"{begin}Ann's", rest)]
    question = 'Question: In the passage above, does the pronoun "*it*" refer to "*the dog*"?'
    passage = "Passage: the dog sat with the cat, so *it* ran."
    prompt = f"{passage}\n{question}\nAnswer:"
    assert asked(pairs, "wsc") == [(prompt, " no"), (prompt, " yes")]
    assert {int(one["target"]) for one in pairs["wsc"][0]} == {1}


def test_translations_are_those_of_the_export(pairs):
    mine, other = pairs["translation"]
    prompt = mine[0]["arguments"][0][0]
    assert prompt.count("\n") == 5  # five examples, then the source
    assert prompt.endswith(" =")
    assert f"{mine[0]['doc']['source']} = " not in prompt  # the item is no example of itself
    assert [one["resps"] for one in mine] == [two["resps"] for two in other]
    assert any(one["resps"][0][0].strip() for one in mine)


class Uniform(torch.nn.Module):
    """Logits of zero over bytes."""

    device, objective = torch.device("cpu"), "clm"
    config = SimpleNamespace(vocab_size=256)

    def features(self, tokens):
        return torch.ones(*tokens.shape, 4)

    def logits(self, h):
        return torch.zeros(*h.shape[:-1], 256)


def test_a_uniform_byte_model_scores_8_bits_a_byte(monkeypatch):
    asked = []  # git, which complains on stderr outside a checkout
    monkeypatch.setattr("lm_eval.evaluator.get_git_commit_hash", lambda: asked.append("git"))
    lm = HarnessLM(Uniform(), ByteTokenizer(), max_length=20)
    found = figures(run_tasks(lm, ["text"], data="data/texts.jsonl"))["text"]["metrics"]
    assert f"{found['bits_per_byte']['value']:.3f}" == "8.000"
    assert found["byte_perplexity"]["value"] == pytest.approx(256, rel=1e-5)
    assert asked == []


def test_eval_reports_tasks_with_standard_errors(capsys):
    options = ["--task-data", "data", "--limit", "5"]
    found = printed(capsys, "eval", "run", "--tasks", "zero_shot", *options)
    assert found["loss"] is None
    assert set(found["tasks"]) == set(ITEMS) - {"translation", "text", *OTHERS}
    assert set(found["tasks"]["piqa"]["metrics"]) == {"acc", "acc_norm"}
    for task in found["tasks"].values():
        assert task["items"] == 5
        for metric in task["metrics"].values():
            assert metric["standard_error"] >= 0
    share = found["tasks"]["piqa"]["metrics"]["acc"]
    spread = math.sqrt(share["value"] * (1 - share["value"]) / 4)
    assert share["standard_error"] == pytest.approx(spread)
    (kept,) = read_evaluations(Path("run"))
    assert (kept["step"], kept["tokens"], kept["tasks"]) == (30, 30 * 384, found["tasks"])


def test_a_checkpoint_is_evaluated_and_kept_with_its_run(capsys, tmp_path):
    shutil.copytree("run", tmp_path / "run")
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-00000030")
    (tmp_path / "run" / "tasks.jsonl").unlink(missing_ok=True)
    for _ in range(2):  # the second in the place of the first
        options = ["--tasks", "copa", "--task-data", "data", "--limit", "2"]
        found = printed(capsys, "eval", str(checkpoint), *options)
    (kept,) = read_evaluations(tmp_path / "run")
    assert kept["tasks"] == found["tasks"]
    assert main(["eval", str(checkpoint.with_name("step-00000029")), "--tasks", "copa"]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_figures_are_kept_under_the_checkpoint_that_was_loaded(monkeypatch, tmp_path):
    run = tmp_path / "run"
    shutil.copytree("run", run)
    (run / "tasks.jsonl").unlink(missing_ok=True)
    asked = lm_eval_tasks.run_tasks

    def while_the_run_trains_on(*arguments, **settings):
        found = asked(*arguments, **settings)
        shutil.rmtree(run / "checkpoints" / "step-00000030")  # as training drops old ones
        return found

    monkeypatch.setattr(lm_eval_tasks, "run_tasks", while_the_run_trains_on)
    options = ["--tasks", "copa", "--task-data", "data", "--limit", "2"]
    assert main(["eval", str(run), *options]) == 0
    assert [kept["step"] for kept in read_evaluations(run)] == [30]


def test_eval_of_text_and_of_a_task_file_beside_its_data(capsys):
    text = Path(unitsphere.__file__).parent / "inference/tasks/piqa.yaml"
    mine = text.read_text().replace("task: piqa", "task: mine").replace("piqa*", "piqa_v*")
    Path("data/mine.yaml").write_text(mine)
    found = printed(capsys, "eval", "run", "--tasks", "data/mine.yaml", "--data", "text.txt")
    assert found["bits_per_byte"] > 0
    assert found["tasks"]["mine"]["items"] == len(WORDS)


def test_translation_of_a_file_with_other_fields_as_a_table(capsys):
    rows = [{"fr": line[0], "en": line[1]} for line in (one.split(" = ") for one in LINES)]
    Path("fr-en.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = ["--task-data", "fr-en.jsonl", "--source-field", "fr", "--target-field", "en"]
    argv += ["--shots", "2", "--limit", "3"]
    assert main(["eval", "run", "--tasks", "translation", *argv]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:4] == ["translation", "3", "2", "bleu"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tasks", "helaswag"], "unknown task 'helaswag' (did you mean 'hellaswag'?)"),
        (["--tasks", "gone.yaml"], "no such task file: gone.yaml"),
        (["--tasks", "piqa"], "no file piqa*.jsonl: give --task_data"),
        (["--tasks", "text", "--task-data", "data"], "14 files in data fit *.jsonl"),
        (["--tasks", "piqa", "--task-data", "gone"], "gone: no such file or folder"),
        (["--tasks", "piqa", "--context", "8", "16"], "--tasks takes one --context"),
        (["--shots", "3"], "--shots needs --tasks"),
        (
            ["--tasks", "hellaswag", "--task-data", "data", "--context", "2"],
            "give a longer --context",
        ),
        (
            ["--tasks", "translation", "--task-data", "data/pairs.jsonl", "--context", "64"],
            "generates 64 tokens, and the context holds 64",
        ),
    ],
)
def test_a_mistake_is_one_line(capsys, argv, message):
    assert main(["eval", "run", *argv]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "unitsphere: error" in line]
    assert len(lines) == 1
    assert message in lines[0]


def test_without_lm_eval_a_line_says_how_to_get_it(capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "lm_eval" else found(n))
    assert main(["eval", "run", "--tasks", "piqa"]) == 2
    err = capsys.readouterr().err
    assert "pip install 'unitsphere[eval]'" in err
    assert err.count("\n") == 1


def test_settings_of_a_task_s_generation():
    assert read_settings({"until": "\n", "do_sample": False}) == (["\n"], 256, {"temperature": 0.0})
    sampled = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "max_gen_toks": 5}
    assert read_settings(sampled) == ([], 5, {"temperature": 0.7, "top_p": 0.9})
    with pytest.raises(UserError, match="num_beams"):
        read_settings({"num_beams": 4})


def test_sampled_continuations_do_not_depend_on_the_batches(ours):
    settings = {"do_sample": True, "temperature": 1.5, "max_gen_toks": 8}
    contexts = ["the cat", "the old man", "a dog", "the cat", "my sister = sang"]
    requests = [SimpleNamespace(args=(context, settings)) for context in contexts]

    def drawn(batch_tokens):
        lm = HarnessLM(ours.model, ours.text, CONTEXT, batch_tokens, seed=3)
        return lm.generate_until(requests)

    found = drawn(5 * CONTEXT)
    assert found == drawn(2 * CONTEXT) == drawn(CONTEXT)
    assert len({*found}) == 5


def test_a_masked_model_gives_no_likelihoods():
    model = unitsphere.build("ngpt", objective="mlm", vocab_size=64, d_model=16, n_heads=2)
    with pytest.raises(UserError, match="objective clm"):
        HarnessLM(model, ByteTokenizer(), 8)


@pytest.mark.data
def test_the_tasks_read_the_official_validation_files(ours):
    data = str(Path(os.environ["UNITSPHERE_DATA"]) / "eval")
    lm = HarnessLM(ours.model, ours.text, max_length=1024)
    found = figures(run_tasks(lm, ["zero_shot"], data=data, limit=4))
    assert {name: one["items"] for name, one in found.items()} == dict.fromkeys(
        set(ITEMS) - {"translation", "text", *OTHERS}, 4
    )
