"""The probes at a run's checkpoints: the document, the pictures, and what is refused."""

import dataclasses
import json
import shutil
import xml.etree.ElementTree as ET

import pytest
import torch
from PIL import Image
from tiny_config import tiny_config

from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.inspection.live import InspectConfig
from unitsphere.inspection.probes import PROBES
from unitsphere.report.inspect_run import inspect_run, records_of
from unitsphere.report.kinds.inspection import pictured, rows
from unitsphere.training.folder import signature
from unitsphere.training.load import load_run
from unitsphere.training.log import read_metrics
from unitsphere.training.recipes import load_recipe
from unitsphere.training.run import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of ngpt with checkpoints of steps 2 and 4 and live probes, and one of gpt."""
    root = tmp_path_factory.mktemp("film")
    text = root / "text.txt"
    text.write_text("".join(f"Line {n} of {n * n}.\n" for n in range(400)))
    for name in ("ngpt", "gpt"):
        config = tiny_config(text, root / "cache", name, steps=4, save_every=2, batch_tokens=128)
        train(dataclasses.replace(config, inspect=InspectConfig(1)), root / name)
    return root


@pytest.fixture(scope="module")
def found(runs):
    return inspect_run(runs / "ngpt", against=runs / "gpt", device="cpu")


def test_the_document_has_every_probe_and_checkpoint(found, runs):
    assert found["run"] == str(runs / "ngpt")
    assert found["architecture"] == "ngpt"
    assert found["checkpoints"] == [0, 2, 4]
    assert found["batch"] == {"rows": 5, "tokens": 160}
    assert list(found["probes"]) == list(PROBES)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    silent = {name for name, probe in found["probes"].items() if not probe["applies"]}
    assert silent == {
        *("gain_norms", "gates", "lambda_by_depth", "mean_gradient_ratio"),
        *("decay_rates", "recurrent_states", "expert_loads", "max_violation"),
    }
    assert "--inspect.probes gradient_norms" in found["probes"]["mean_gradient_ratio"]["why"]
    for name, probe in found["probes"].items():
        values = probe["values"]
        assert len(values["steps"]) == len(values["series"])
        assert (probe["why"] == "") == probe["applies"]
        late = {"moment_variance", "angular_updates", "mean_gradients_by_layer"}
        # nothing was stepped before step 0
        steps = [] if name in silent else [2, 4] if name in late else [0, 2, 4]
        assert values["steps"] == steps


def test_figures_are_those_of_the_checkpoint(found, runs):
    model = load_run(runs / "ngpt", "cpu").model
    alpha = found["probes"]["eigen_learning_rates"]["values"]["series"]
    wanted = [float(block.alpha_A().abs().mean()) for block in model.blocks]
    assert alpha[-1]["alpha_A"]["means"] == pytest.approx(wanted, rel=1e-5)
    assert alpha[0]["alpha_A"]["means"] == pytest.approx([0.05, 0.05])


def test_live_records_and_checkpoints_agree_where_they_meet(found):
    for name in ("group_norms", "moment_variance", "input_norms"):
        values = found["probes"][name]["values"]
        assert values["live"]["steps"] == [1, 2, 3, 4]
        last, live = values["series"][-1], values["live"]["series"][-1]
        assert live.keys() == last.keys()
        for series in live:
            assert live[series]["labels"] == last[series]["labels"]
            exact = name != "input_norms"  # the live one looks at a row, not at the whole batch
            tolerance = 1e-4 if exact else 1e-3
            assert live[series]["values"] == pytest.approx(last[series]["values"], rel=tolerance)


def test_the_angle_between_checkpoints_is_at_most_that_of_the_steps_between(found):
    values = found["probes"]["angular_updates"]["values"]
    live = dict(zip(values["live"]["steps"], values["live"]["series"], strict=True))
    between = values["series"][-1]["W_q"]["values"][0]
    steps = [live[step]["W_q"]["values"][0] for step in (3, 4)]
    assert 0.2 * sum(steps) / 2 < between <= sum(steps) / 2


def test_pictures_table_and_film_are_written(runs, capsys):
    chosen = [
        "condition_numbers",  # over layers, in part dotted
        "eigen_learning_rates",  # boxes
        "embedding_eigenvalues",  # histograms
        "learned_scales",  # both
        "moment_variance",  # over steps
        "gain_norms",  # does not apply
    ]
    command = ["inspect", str(runs / "ngpt"), "--film", "--probes", *chosen]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "condition_numbers" in printed.out
    assert "gain_norms does not apply: no norm" in printed.out
    assert "step 4" in printed.err
    folder = runs / "ngpt" / "inspect"
    document = json.loads((folder / "inspect.json").read_text())
    applies = {name for name, probe in document["probes"].items() if probe["applies"]}
    assert applies == {*chosen} - {"gain_norms"}
    assert {path.stem for path in folder.glob("*.svg")} == applies
    assert {path.stem for path in folder.glob("*.png")} == applies
    for path in folder.glob("*.svg"):
        assert ET.parse(path).getroot().tag.endswith("svg")
    with Image.open(folder / "film.gif") as moving:
        assert moving.n_frames == 3
    with Image.open(folder / "moment_variance.png") as picture:
        assert picture.width > 400


def test_json_and_a_choice_of_probes_and_steps(runs, capsys):
    command = ["inspect", str(runs / "gpt"), "--probes", "gain_norms", "logit_lens"]
    assert main([*command, "--steps", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["probes"]) == ["gain_norms", "logit_lens"]
    assert document["checkpoints"] == [4]
    lens = document["probes"]["logit_lens"]["values"]["series"][-1]["loss"]
    assert lens["labels"] == ["in", "0", "1"]
    assert main(["inspect", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PROBES)


def test_without_its_data_a_run_still_shows_its_weights(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "gpt", run)
    config = json.loads((run / "config.json").read_text())
    config["data"] |= {"source": str(tmp_path / "gone.txt"), "cache": str(tmp_path / "empty")}
    (run / "config.json").write_text(json.dumps(config))
    environment = json.loads((run / "environment.json").read_text())
    environment["signature"] = signature(load_recipe(run / "config.json").data)
    (run / "environment.json").write_text(json.dumps(environment))
    found = inspect_run(run, ["condition_numbers", "attention_entropy"], device="cpu")
    assert found["batch"] == {"rows": 0, "tokens": 0}
    assert found["probes"]["condition_numbers"]["applies"]
    assert "gone.txt" in found["probes"]["attention_entropy"]["why"]
    with pytest.raises(UserError, match=r"cannot compare with .*gone\.txt"):
        inspect_run(runs / "ngpt", ["gradient_ratio"], against=run, device="cpu")


def test_a_damaged_checkpoint_is_left_out_and_said(runs, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(runs / "gpt", run)
    (run / "checkpoints" / "step-00000002" / "state.json").write_text("{}")
    found = inspect_run(run, ["group_norms"], device="cpu")
    assert found["checkpoints"] == [0, 4]
    assert "step-00000002 is damaged" in capsys.readouterr().err


def test_what_cannot_be_inspected_is_one_line(runs, tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        inspect_run(tmp_path)
    with pytest.raises(UserError, match=r"no checkpoint of step 3 \(it has: 2, 4\)"):
        inspect_run(runs / "gpt", steps=[3])
    with pytest.raises(UserError, match="there is no probe 'logit_len'"):
        inspect_run(runs / "gpt", ["logit_len"])


def test_the_start_is_the_model_that_training_began_with(runs):
    first = inspect_run(runs / "ngpt", ["group_norms", "embedding_dots"], device="cpu")
    assert first["checkpoints"][0] == 0
    again = inspect_run(runs / "ngpt", ["group_norms", "embedding_dots"], device="cpu")
    assert first == again
    environment = runs / "ngpt" / "environment.json"
    kept = environment.read_text()
    try:  # on a GPU other numbers are drawn
        environment.write_text(json.dumps(json.loads(kept) | {"device": "NVIDIA H100"}))
        found = inspect_run(runs / "ngpt", ["group_norms"], device="cpu")
        assert found["checkpoints"][0] == 2
    finally:
        environment.write_text(kept)


@pytest.mark.parametrize("steps", [[0], [0, 4], [4]])
def test_the_start_is_a_step_that_can_be_chosen(runs, found, steps):
    names = ["group_norms", "angular_updates", "gradient_ratio"]
    some = inspect_run(runs / "ngpt", names, steps, against=runs / "gpt", device="cpu")
    assert some["checkpoints"] == steps
    for name in ("group_norms", "gradient_ratio"):
        every = found["probes"][name]["values"]
        chosen = some["probes"][name]["values"]
        assert chosen["steps"] == steps
        assert chosen["series"] == [every["series"][every["steps"].index(s)] for s in steps]


def test_a_run_without_checkpoints_has_a_start(runs, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(runs / "gpt", run)
    shutil.rmtree(run / "checkpoints")
    command = ["inspect", str(run), "--device", "cpu", "--probes", "group_norms"]
    capsys.readouterr()
    assert main([*command, "--steps", "0", "--film"]) == 0
    assert "no film: it needs two steps and one of input_norms, " in capsys.readouterr().err
    capsys.readouterr()
    assert main([*command, "--steps", "4"]) == 2
    assert "no checkpoint of step 4 (it has: none)" in capsys.readouterr().err


def test_a_start_with_the_weights_of_another_run_is_left_out(runs, tmp_path):
    config = load_run(runs / "gpt", "cpu").config
    again = dataclasses.replace(config, init=str(runs / "gpt"))
    train(again, tmp_path / "run")
    found = inspect_run(tmp_path / "run", ["group_norms"], device="cpu")
    assert found["checkpoints"] == [2, 4]
    with pytest.raises(UserError, match=r"no step 0: .* cannot be drawn again here, leave it out"):
        inspect_run(tmp_path / "run", ["group_norms"], [0, 4], device="cpu")
    other = inspect_run(runs / "gpt", ["gradient_ratio"], against=tmp_path / "run", device="cpu")
    assert other["probes"]["gradient_ratio"]["values"]["steps"] == [2, 4]


def test_a_picture_over_steps_shows_the_live_records_and_relative_shares(found):
    values = found["probes"]["moment_variance"]["values"]
    view = pictured("moment_variance", values)
    assert view.over_steps
    assert list(view.steps) == [1, 2, 3, 4]
    shares = [scene["W_q"]["values"][1] for scene in view.scenes]
    assert sum(shares) == pytest.approx(1, rel=1e-4)
    assert pictured("logit_lens", found["probes"]["logit_lens"]["values"]).over_steps is False


def test_means_are_over_the_steps_since_the_checkpoint_before(found, runs):
    values = found["probes"]["mean_gradients_by_layer"]["values"]
    records = {record["step"]: record for record in read_metrics(runs / "ngpt")}

    def mean(layer: int) -> float:
        key = f"probe/second_fc_gradients/W_oMLP/{layer}"
        return sum(records[step][key] / records[step]["loss"] for step in (3, 4))

    assert values["series"][-1]["W_oMLP"]["values"] == pytest.approx([mean(0) / mean(1), 1])


def test_the_table_has_means_of_first_and_last_and_the_layers_ends(found):
    table = {row[0]: row for row in rows(found) if row[0]}
    lens = found["probes"]["logit_lens"]["values"]["series"]
    last = lens[-1]["loss"]["values"]
    assert table["logit_lens"][1] == "loss"
    assert table["logit_lens"][3] == f"{sum(last) / len(last):.3g}"
    assert table["logit_lens"][4:] == [f"{min(last):.3g}", f"{max(last):.3g}"]


def test_a_run_with_muon_says_that_matrices_have_no_first_moment(runs, tmp_path):
    config = load_run(runs / "gpt", "cpu").config
    train_two = dataclasses.replace(config.train, steps=2)
    optim = dataclasses.replace(config.optim, name="muon")
    train(dataclasses.replace(config, optim=optim, train=train_two), tmp_path / "run")
    found = inspect_run(tmp_path / "run", ["moment_variance"], device="cpu")
    assert not found["probes"]["moment_variance"]["applies"]
    assert "Muon" in found["probes"]["moment_variance"]["why"]
    assert torch.is_grad_enabled()


def test_each_step_is_compared_with_the_same_of_the_other_run(runs):
    same = inspect_run(runs / "gpt", ["gradient_ratio"], against=runs / "gpt", device="cpu")
    found = same["probes"]["gradient_ratio"]["values"]
    assert found["steps"] == [0, 2, 4]
    for step, scene in zip(found["steps"], found["series"], strict=True):
        ratios = [value for series in scene.values() for value in series["values"]]
        assert ratios == pytest.approx([1.0] * len(ratios)), step
    other = inspect_run(runs / "ngpt", ["gradient_ratio"], [4], runs / "gpt", "cpu")
    last = other["probes"]["gradient_ratio"]["values"]["series"][-1]
    assert last["W_q"]["values"][0] != pytest.approx(1, rel=1e-3)


@pytest.fixture
def own(runs, tmp_path):
    """A copy of the run of ngpt."""
    shutil.copytree(runs / "ngpt", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "document",
    ["[]", "null", "{", '{"processes": 5}', '{"processes": {"tp": []}}', '{"processes": [1]}'],
)
def test_an_odd_environment_leaves_out_the_start(runs, own, document):
    found = json.loads((own / "environment.json").read_text())
    odd = found | json.loads(document) if document.startswith('{"') else document
    (own / "environment.json").write_text(odd if isinstance(odd, str) else json.dumps(odd))
    found = inspect_run(own, ["group_norms"], device="cpu", data=str(runs / "text.txt"))
    assert found["checkpoints"] == [2, 4]


def test_live_records_that_are_none_are_left_out(own):
    metrics = own / "metrics.jsonl"
    expected = records_of(own)
    odd = {"probe/a/b": 1.0, "probe/a/b/c/d": 1.0, "probe/": 1.0}
    odd |= {"probe/group_norms/x/0": "y", "probe/group_norms/x/1": [1.0], "probe/a/b/c": None}
    lines = metrics.read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | odd)
    metrics.write_text("\n".join([*lines, "[1]", '{"st']))
    assert records_of(own) == expected


@pytest.mark.parametrize("context", [0, -1])
def test_a_context_without_tokens_is_one_line(own, context):
    config = json.loads((own / "config.json").read_text())
    config["data"]["context"] = context
    (own / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"data\.context must be at least 1: {context}"):
        inspect_run(own, ["group_norms"], device="cpu")
