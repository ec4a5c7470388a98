"""A run follows its data to another place, by their contents, and resumes from any folder."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from run_folders import KilledError, die, figures

from unitsphere.cli import main
from unitsphere.data.prepare import prepare
from unitsphere.errors import UserError
from unitsphere.training.folder import ENVIRONMENT
from unitsphere.training.optim.schedule import ScheduleConfig
from unitsphere.training.resolve import default_folder, last_data
from unitsphere.training.run import train


def on(config, **data):
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **data))


@pytest.fixture
def config(tiny, source, tmp_path, monkeypatch):
    """A config of two short files in the working directory, which saves at step 3 and dies at 5."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(source, "a.jsonl")
    shutil.copy(source, "held-out.jsonl")
    return on(tiny(sample_every=5), source="a.jsonl", validation="held-out.jsonl", cache="cache")


@pytest.fixture
def broken(config, tmp_path):
    """The run folder of `config`, killed after step 5."""
    with pytest.raises(KilledError):
        train(config, "run", sampler=die)
    return tmp_path / "run"


def test_other_spellings_of_a_path_are_the_same_run(config, broken, tmp_path):
    whole = figures(train(config, "whole", sampler=lambda *_: "").out)
    for spelled in ("./a.jsonl", str(tmp_path / "a.jsonl"), "run/../a.jsonl"):
        shutil.copytree(broken, "copy")
        result = train(on(config, source=spelled), "copy", sampler=lambda *_: "")
        assert result.trained
        assert figures(Path("copy")) == whole
        shutil.rmtree("copy")


def test_a_run_resumes_from_any_working_directory(config, broken, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["train", str(broken)]) == 0
    assert [record["step"] for record in figures(broken)] == list(range(1, 9))
    assert not list((tmp_path / "elsewhere").iterdir())
    assert main(["eval", str(broken)]) == 0


def test_a_run_of_relative_paths_from_before_resumes_where_they_lead(config, broken):
    """Runs of earlier versions hold their paths as they were typed, and no fingerprint."""
    saved = json.loads((broken / "config.json").read_text())
    saved["data"] |= {"source": "a.jsonl", "validation": "held-out.jsonl", "cache": "cache"}
    (broken / "config.json").write_text(json.dumps(saved))
    (broken / ENVIRONMENT).unlink()
    shutil.copy("a.jsonl", "b.jsonl")
    with pytest.raises(KilledError):
        train(on(config, source="b.jsonl"), broken, sampler=die)
    assert train(config, broken, sampler=lambda *_: "").trained


def test_moved_data_resume_and_are_recorded(config, broken, tmp_path, capsys):
    whole = figures(train(config, "whole", sampler=lambda *_: "").out)
    (tmp_path / "new").mkdir()
    for name in ("a.jsonl", "held-out.jsonl"):
        Path(name).rename(tmp_path / "new" / name)
    shutil.rmtree("cache")
    assert main(["train", str(broken)]) == 2
    said = capsys.readouterr().err
    assert f"no such file: {tmp_path / 'a.jsonl'}, which" in said
    assert "add --data.source with its new place" in said
    moved = ["--data.source", "new/a.jsonl", "--data.validation", "new/held-out.jsonl"]
    assert main(["train", str(broken), *moved]) == 0
    assert figures(broken) == whole
    new = str(tmp_path / "new" / "a.jsonl")
    assert json.loads((broken / "config.json").read_text())["data"]["source"] == new
    written = json.loads((broken / ENVIRONMENT).read_text())
    assert written["data"]["source"] == str(tmp_path / "a.jsonl")
    (resumed,) = written["resumed"]
    assert resumed["data"]["source"] == new
    assert resumed["data"]["fingerprint"] == written["data"]["fingerprint"] == last_data(broken)


def test_a_run_is_trained_longer_on_moved_data(config):
    def steady(steps, source):
        train = dataclasses.replace(config.train, steps=steps)
        constant = dataclasses.replace(config, train=train, schedule=ScheduleConfig("constant"))
        return on(constant, source=source)

    train(steady(8, "a.jsonl"), "run", sampler=lambda *_: "")
    Path("a.jsonl").rename("b.jsonl")
    train(steady(10, "b.jsonl"), "run", sampler=lambda *_: "")
    assert [record["step"] for record in figures(Path("run"))] == list(range(1, 11))
    Path("c.jsonl").write_text(Path("b.jsonl").read_text().replace("Document", "document"))
    with pytest.raises(UserError, match=r"another config \(data\.source: .*; train\.steps: 10"):
        train(steady(12, "c.jsonl"), "run")


def test_the_folder_of_a_run_is_found_by_its_data(config, broken, tmp_path):
    shutil.copy("a.jsonl", "b.jsonl")
    assert default_folder(on(config, source="b.jsonl"), broken) == (broken, "")
    Path("b.jsonl").write_text(Path("a.jsonl").read_text().replace("Document", "document"))
    out, why = default_folder(on(config, source="b.jsonl"), broken)
    assert out == tmp_path / "run-2"
    assert "data.source: " in why


def test_other_bytes_of_the_same_size_are_another_run(config, broken):
    text = Path("a.jsonl").read_text()
    Path("b.jsonl").write_text(text.replace("Document 7", "document 7"))
    with pytest.raises(UserError, match=r"another config \(data.source: .*a.jsonl' -> '.*b.jsonl"):
        train(on(config, source="b.jsonl"), broken)
    Path("a.jsonl").write_text(text.replace("Document 7", "document 7"))
    with pytest.raises(UserError, match="the data are not those"):
        train(config, broken)


@pytest.mark.parametrize("key", ["source", "validation"])
def test_a_run_writes_nothing_into_the_folder_that_it_reads(config, tmp_path, key):
    """What it wrote would be text, and so it could not be resumed or evaluated."""
    (tmp_path / "texts").mkdir()
    shutil.move("a.jsonl" if key == "source" else "held-out.jsonl", "texts")
    config = on(config, **{key: "texts"})
    with pytest.raises(UserError, match=r"run is inside the source .*: choose another --out"):
        train(config, "texts/run")
    with pytest.raises(UserError, match=r"choose another --data\.cache"):
        train(on(config, cache="texts/cache"), "run")
    assert len(list(Path("texts").iterdir())) == 1
    assert train(config, "run", sampler=lambda *_: "").trained


def test_a_moved_prepared_folder_brings_its_tokenizer(config, tmp_path):
    prepare("a.jsonl", "bpe:300", "shards", progress=False)
    config = on(config, source="shards", validation=None, tokenizer=None)
    with pytest.raises(KilledError):
        train(config, "run", sampler=die)
    Path("shards").rename("moved")
    assert main(["train", "run", "--data.source", "moved"]) == 0
    saved = json.loads(Path("run/config.json").read_text())["data"]
    assert saved["source"] == str(tmp_path / "moved")
    assert saved["tokenizer"] == str(tmp_path / "moved" / "tokenizer.json")
    Path("moved").rename("shards")
    other = prepare("a.jsonl", "bpe:290", "other", progress=False)
    with pytest.raises(UserError, match="another config"):
        train(on(config, source=str(other)), "run")


def test_a_prepared_folder_without_validation_is_to_be_prepared_again(config):
    """data.val_fraction, which every recipe has, does not change what is prepared already."""
    prepare("a.jsonl", "bytes", "all", val_fraction=0.0, progress=False)
    with pytest.raises(UserError, match="validation: prepare it again with a larger --val_f"):
        train(on(config, source="all", validation=None), "run")
    with pytest.raises(UserError, match=r"validation: raise data\.val_fraction \(now 0\.0\)"):
        train(on(config, val_fraction=0.0, validation=None), "run")


def test_text_and_what_is_prepared_of_it_are_the_same_data(config, tmp_path):
    config = on(config, validation=None)
    with pytest.raises(KilledError):
        train(config, "run", sampler=die)
    prepare("a.jsonl", "bytes", "shards", progress=False)
    assert train(on(config, source="shards"), "run", sampler=lambda *_: "").trained
