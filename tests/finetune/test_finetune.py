"""Fine-tuning: what it learns, what it keeps, and that the reported part chooses nothing."""

import json
import random
from pathlib import Path

import pytest
import torch

from unitsphere.data.labelled import Example, encode_examples
from unitsphere.data.tasks import TASKS
from unitsphere.data.tokenizer import load_tokenizer
from unitsphere.errors import RunFailed, UserError
from unitsphere.finetune import FinetuneConfig, finetune, load_classifier
from unitsphere.finetune.classify import class_logits
from unitsphere.finetune.data import open_parts
from unitsphere.finetune.fit import Fit, Labelled, fit
from unitsphere.finetune.results import Scored, Tuned, baseline, best_rate, edge
from unitsphere.models.classifier import Classifier
from unitsphere.models.constraint import constraints, declarations
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.report.kinds.finetune import caveats
from unitsphere.training.load import load_run
from unitsphere.training.optim import OptimConfig
from unitsphere.training.run import train

BYTES = load_tokenizer("bytes")
GOOD, BAD = ("good", "fine"), ("poor", "dull")


def easy(count: int, seed: int) -> list[tuple[str, int]]:
    """Texts whose label is whether their second word is a good one."""
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        word = draw.choice(GOOD if i % 2 else BAD)
        rows.append((f"a {word} film {'z' * draw.randrange(9)} {i}", i % 2))
    return rows


def write_tsv(path: Path, rows: list[tuple[str, int]]) -> str:
    path.write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return str(path)


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory) -> dict[str, str]:
    """Objective -> the folder of an nGPT trained with it for a few steps."""
    folder = tmp_path_factory.mktemp("run")
    return {kind: str(train(tiny("ngpt", kind), folder / kind).out) for kind in ("mlm", "clm")}


@pytest.fixture
def run(runs) -> str:
    """One of them, for what does not depend on the objective."""
    return runs["mlm"]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    """A training and a test file of the same easy task."""
    folder = tmp_path_factory.mktemp("files")
    return {
        "data": write_tsv(folder / "train.tsv", easy(120, 0)),
        "test": write_tsv(folder / "test.tsv", easy(40, 1)),
    }


def config(run: str, files: dict[str, str], **changes) -> FinetuneConfig:
    quick = {"lr": (1e-2,), "seed": (0,), "batch": 16, "epochs": 1, "device": "cpu"}
    return FinetuneConfig(run=run, task="sst2", **files, **(quick | changes))


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_an_easy_task_is_learned_to_the_last_example(objective, runs, files, tmp_path):
    run = runs[objective]
    found = finetune(config(run, files, epochs=8, seed=(0, 1)), tmp_path / "out")
    accuracy = found["test"]["scores"]["accuracy"]
    assert accuracy == {"mean": 1.0, "standard_error": 0.0}
    assert found["test"]["majority"]["accuracy"] == 0.5
    assert found["examples"] == {"train": 96, "tune": 24, "test": 40}
    classifier = load_classifier(tmp_path / "out", "cpu")
    assert classifier.predict(["a good film 999", "a dull book 998"]) == ["1", "0"]


def test_a_classifier_takes_what_it_was_trained_on(run, files, tmp_path):
    both = write_tsv(tmp_path / "pairs.tsv", [(f"{text}\tb", y) for text, y in easy(40, 0)])
    Path(both).write_text(Path(both).read_text().replace("sentence", "text\ttext2", 1))
    quick = {"lr": (1e-2,), "seed": (0,), "epochs": 1, "device": "cpu", "label": "label"}
    finetune(FinetuneConfig(run, both, text="text", text2="text2", **quick), tmp_path / "pairs")
    pairs = load_classifier(tmp_path / "pairs", "cpu")
    assert len(pairs.predict(["a good film"], ["b"])) == 1
    with pytest.raises(UserError, match="trained on pairs of texts: give the second texts"):
        pairs.predict(["a good film"])
    with pytest.raises(UserError, match="2 texts and 1 second texts: give one for each text"):
        pairs.probabilities(["a", "b"], ["c"])
    finetune(config(run, files), tmp_path / "single")
    single = load_classifier(tmp_path / "single", "cpu")
    with pytest.raises(UserError, match="trained on single texts: leave out the second"):
        single.predict(["a good film"], ["b"])
    with pytest.raises(UserError, match="give a list of texts, not a single string"):
        single.predict("a good film")


def test_the_reported_part_chooses_nothing(run, files, tmp_path):
    """With every test label turned over, the choice is the same and the scores are turned over."""
    rates = {"lr": (1e-2, 1e-4), "epochs": 3}
    turned = write_tsv(tmp_path / "turned.tsv", [(text, 1 - y) for text, y in easy(40, 1)])
    one = finetune(config(run, files, **rates), tmp_path / "one")
    two = finetune(config(run, files | {"test": turned}, **rates), tmp_path / "two")
    assert one["best_lr"] == two["best_lr"]
    assert scores_of(one["rates"]) == scores_of(two["rates"])
    first, second = (found["test"]["scores"]["accuracy"]["mean"] for found in (one, two))
    assert first == pytest.approx(1 - second)
    assert first != second


def scores_of(rates: list[dict]) -> list:
    """The tune scores of every rate and seed, without the clock."""
    return [[seed["tune"] for seed in rate["seeds"]] for rate in rates]


def test_the_three_parts_are_disjoint_and_stratified(tmp_path):
    rows = [(f"text {i}", int(i % 4 == 0)) for i in range(200)]
    data = write_tsv(tmp_path / "t.tsv", rows)
    parts = open_parts(data, None, TASKS["sst2"].fields, BYTES, 32)
    assert parts.sizes() == {"train": 128, "tune": 32, "test": 40}
    tokens = [{t.tobytes() for t in p.tokens} for p in (parts.train, parts.tune, parts.test)]
    assert len(tokens[0] | tokens[1] | tokens[2]) == 200
    for part in (parts.train, parts.tune, parts.test):
        assert sum(part.truth) / len(part) == 0.25
    assert baseline(parts)["accuracy"] == 0.75
    assert parts.overlap() == 0


def test_a_finished_rate_is_not_trained_again(run, files, tmp_path, monkeypatch):
    out = tmp_path / "out"
    first = finetune(config(run, files, lr=(1e-2, 1e-6)), out)
    trained = []

    def counted(classifier, train, how, lr, seed):
        trained.append((lr, seed))
        return fit(classifier, train, how, lr, seed)

    monkeypatch.setattr("unitsphere.finetune.fit.fit", counted)
    again = finetune(config(run, files, lr=(1e-2, 1e-6)), out)
    assert trained == []
    assert again["test"] == first["test"]
    finetune(config(run, files, lr=(1e-2, 1e-6, 1e-7), seed=(0, 1)), out)
    assert set(trained) == {(1e-2, 1), (1e-6, 1), (1e-7, 0), (1e-7, 1)}
    assert sorted(p.name for p in out.iterdir()) == [
        "config.json",
        "model.safetensors",
        "parts",
        "results.json",
        "tokenizer.json",
    ]
    assert not list((out / "parts").glob("*.safetensors"))


def test_a_killed_fine_tuning_continues_to_the_same_scores(run, files, tmp_path, monkeypatch):
    settings = config(run, files, lr=(1e-2, 1e-3), seed=(0, 1))
    whole = finetune(settings, tmp_path / "whole")

    def killed(classifier, train, how, lr, seed):
        if (lr, seed) == (1e-3, 1):
            raise KeyboardInterrupt
        return fit(classifier, train, how, lr, seed)

    with monkeypatch.context() as patch:
        patch.setattr("unitsphere.finetune.fit.fit", killed)
        with pytest.raises(KeyboardInterrupt):
            finetune(settings, tmp_path / "parts")
    resumed = finetune(settings, tmp_path / "parts")
    assert scores_of(resumed["rates"]) == scores_of(whole["rates"])
    assert resumed["test"] == whole["test"]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert models[0] == models[1]


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_dropped_weights_come_back_the_same(objective, runs, files, tmp_path):
    run = runs[objective]
    out = tmp_path / "out"
    finetune(config(run, files, seed=(0, 1)), out)
    model = (out / "model.safetensors").read_bytes()
    finetune(config(run, files, seed=(1, 0)), out)
    assert (out / "model.safetensors").read_bytes() != model
    finetune(config(run, files, seed=(0, 1)), out)
    assert (out / "model.safetensors").read_bytes() == model


def test_other_settings_are_refused_in_the_same_folder(run, files, tmp_path):
    finetune(config(run, files), tmp_path / "out")
    with pytest.raises(UserError, match=r"other settings \(epochs\): repeat"):
        finetune(config(run, files, epochs=2), tmp_path / "out")
    with pytest.raises(UserError, match=r"other settings \(start\)"):
        finetune(config(run, files, scratch=True), tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    with pytest.raises(UserError, match="does not hold a fine-tuning"):
        finetune(config(run, files), tmp_path / "other")
    with pytest.raises(UserError, match="does not hold a fine-tuning"):
        finetune(config(run, files), run)


def test_from_scratch_is_another_model_from_each_seed(run, files, tmp_path):
    trained = finetune(config(run, files), tmp_path / "trained")
    scratch = finetune(config(run, files, scratch=True), tmp_path / "scratch")
    assert (trained["start"], scratch["start"]) == ("pretrained", "random")
    assert scores_of(trained["rates"]) != scores_of(scratch["rates"])


def test_results_are_those_on_the_disk(run, files, tmp_path):
    found = finetune(config(run, files), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
    assert {"commit", "command", "packages"} <= found["environment"].keys()


def test_an_exported_folder_is_refused(files, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "unitsphere", "unitsphere": {}}')
    with pytest.raises(UserError, match="is an exported folder: its scales are part of its"):
        finetune(config(str(tmp_path), files), tmp_path / "out")


def test_its_own_folder_is_not_a_run(run, files, tmp_path):
    finetune(config(run, files), tmp_path)
    for use in (load_run, lambda path: finetune(config(str(path), files), tmp_path / "out")):
        with pytest.raises(UserError, match="is of a fine-tuned classifier, which unitsphere"):
            use(tmp_path)


def test_the_training_file_is_no_test(run, files, tmp_path):
    with pytest.raises(UserError, match="training file itself"):
        finetune(config(run, files | {"test": files["data"]}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_test_examples_that_training_has_seen_are_counted(run, tmp_path, capsys):
    data = write_tsv(tmp_path / "data.tsv", easy(40, 0))
    test = write_tsv(tmp_path / "test.tsv", [*easy(40, 0)[:3], ("another text", 1)])
    found = finetune(config(run, {"data": data, "test": test}), tmp_path / "out")
    assert found["test_examples_in_training"] == 3
    assert "3 test examples are word for word in the training data" in capsys.readouterr().err
    assert "3 test examples are also in the training or tune part." in caveats(found)


def tuned(score: float, loss: float) -> Tuned:
    return Tuned(Scored(score, None, 0.0, loss), 0.0)


def test_the_best_rate_is_that_of_the_best_mean_score_and_of_equals_the_lowest_loss():
    rates = {
        1e-3: [tuned(0.9, 1.0), tuned(0.5, 1.0)],
        3e-3: [tuned(0.8, 0.7), tuned(0.8, 0.7)],
        1e-2: [tuned(0.8, 0.5), tuned(0.8, 0.6)],
        3e-2: [tuned(1.0, 0.1), Tuned(None, 0.0)],
    }
    assert best_rate(rates, "accuracy") == 1e-2
    with pytest.raises(UserError, match="lower --lr"):
        best_rate({3e-2: rates[3e-2]}, "accuracy")


def test_the_edge_of_the_rates():
    assert [edge(best, (3e-3, 1e-3, 1e-2)) for best in (1e-3, 3e-3, 1e-2)] == [
        "lowest",
        None,
        "highest",
    ]
    assert edge(1e-3, (1e-3,)) is None


def labelled(rows: list[tuple[str, int]]) -> Labelled:
    examples = [Example(text, None, str(y), i) for i, (text, y) in enumerate(rows)]
    return Labelled(encode_examples(examples, BYTES, 32).tokens, [y for _, y in rows])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_fine_tunes_as_an_encoder_under_its_own_constraint(name):
    body = build(name, objective="mlm", vocab_size=320, d_model=32, n_layers=2, n_heads=2, seed=1)
    classifier = Classifier(body, 2, "mean")
    how = Fit(OptimConfig(), epochs=2, batch=16, separator=0)
    before = {n: p.detach().clone() for n, p in body.named_parameters()}
    examples = labelled(easy(48, 0))
    assert fit(classifier, examples, how, lr=1e-2, seed=0)
    for bound in constraints(body):
        length = body.get_parameter(bound.parameter).norm(dim=bound.dim)
        above = length - bound.radius
        assert above.max() < 1e-6
        if bound.kind == "sphere":
            assert above.abs().max() < 1e-6
    # What the features do not see (output head, its scales) stays; everything else is trained.
    roles = declarations(body)
    still = {n for n, p in body.named_parameters() if torch.equal(p, before[n])}
    assert {roles[n].role for n in still} <= {"head", "scale", "bias"}
    assert len(still) <= 2
    logits = class_logits(classifier, examples.tokens, separator=0)
    assert torch.isfinite(logits).all()


def test_the_seed_decides_where_the_head_starts():
    def head(seed: int) -> torch.Tensor:
        body = build("gpt", objective="mlm", vocab_size=320, d_model=32, n_layers=1, n_heads=2)
        classifier = Classifier(body, 2, "mean")
        how = Fit(OptimConfig(), epochs=1, batch=16, separator=0)
        assert fit(classifier, labelled(easy(16, 0)), how, lr=1e-9, seed=seed)
        return classifier.head.weight.detach()

    torch.testing.assert_close(head(0), head(0), rtol=0, atol=0)
    assert (head(0) - head(1)).abs().max() > 1e-2
    assert head(0).std() == pytest.approx(0.02, rel=0.3)


def test_a_loss_that_is_no_number_ends_a_training():
    body = build("gpt", objective="mlm", vocab_size=320, d_model=32, n_layers=1, n_heads=2)
    with torch.no_grad():
        next(body.parameters()).fill_(float("nan"))
    how = Fit(OptimConfig(), epochs=1, batch=16, separator=0)
    assert not fit(Classifier(body, 2, "mean"), labelled(easy(16, 0)), how, lr=1e-2, seed=0)


def test_a_rate_that_is_too_high_is_not_chosen(run, files, tmp_path):
    """At a rate of 1e38 the weights overflow: by then or in the last step."""
    found = finetune(config(run, files, lr=(1e38, 1e-3)), tmp_path / "out")
    assert found["best_lr"] == 1e-3
    assert found["rates"][1]["tune"] is None
    with pytest.raises(RunFailed, match="at every rate"):  # status 1
        finetune(config(run, files, lr=(1e38,)), tmp_path / "high")


def test_muon_keeps_the_ratio_of_its_rates():
    how = Fit(OptimConfig(name="muon", lr=1e-2, adam_lr=1e-3), 1, 16, 0)
    assert how.optim_at(2e-2).adam_lr == pytest.approx(2e-3)
    assert Fit(OptimConfig(), 1, 16, 0).optim_at(1e-4).lr == 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": (0.0,)}, "--lr"),
        ({"lr": (1e-3, 1e-3)}, "--lr names a value twice"),
        ({"seed": (-1,)}, "--seed"),
        ({"epochs": 0}, "--epochs"),
        ({"batch": 0}, "--batch"),
    ],
)
def test_numbers_that_cannot_be(files, changes, message):
    with pytest.raises(UserError, match=message):
        config("run", files, **changes)
