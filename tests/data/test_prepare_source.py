"""`prepare` end to end: complete or absent, once, and one clear line for a mistake."""

import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unitsphere.data import DataConfig, Shards, encode, prepare, prepared
from unitsphere.data.shards import read_manifest
from unitsphere.errors import UserError


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def texts(folder: Path, split: str) -> str:
    shards = Shards.open(folder, split)
    return shards.tokenizer().decode(shards[:].tolist())


def test_tokens_are_those_of_the_tokenizer(corpus: list[str], jsonl: Path, tmp_path: Path) -> None:
    out = prepare(str(jsonl), "bpe:400", tmp_path / "out", progress=False)
    train, val = Shards.open(out), Shards.open(out, "val")
    tokenizer = train.tokenizer()
    held_out = [t for t in corpus if t in texts(out, "val")]
    kept = [t for t in corpus if t not in held_out]
    assert held_out[0] == corpus[1]
    for shards, expected in ((train, kept), (val, held_out)):
        stream = [i for t in expected for i in (shards.separator, *tokenizer.encode(t))]
        assert shards[:].tolist() == stream
        assert shards[:].dtype == "uint16"


def test_batching_changes_nothing(
    jsonl: Path, ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "BATCH_PIECES", 3)
    monkeypatch.setattr(encode, "BATCH_CHARACTERS", 50)
    out = prepare(str(jsonl), "bytes", tmp_path / "out", progress=False)
    assert everything(out).keys() == everything(ready).keys()
    assert texts(out, "train") == texts(ready, "train")


def test_the_second_time_does_nothing(
    jsonl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = prepare(str(jsonl), "bytes", tmp_path / "out")
    before = everything(out)
    moved = shutil.copy(jsonl, tmp_path / "elsewhere.jsonl")
    monkeypatch.setattr(sys.modules["unitsphere.data.prepare"], "write_shards", None)
    prepare(str(moved), "bytes", out)
    assert "nothing to do" in capsys.readouterr().err
    assert everything(out) == before


def test_equal_inputs_give_equal_folders(jsonl: Path, tmp_path: Path) -> None:
    a, b = (prepare(str(jsonl), "bpe:300", tmp_path / n, progress=False) for n in "ab")
    assert everything(a) == everything(b)


def test_other_input_is_not_written_over(jsonl: Path, tmp_path: Path) -> None:
    out = prepare(str(jsonl), "bytes", tmp_path / "out", progress=False)
    before = everything(out)
    for other in (
        (__file__, "bytes", 0.02),
        (str(jsonl), "bpe:300", 0.02),
        (str(jsonl), "bytes", 1),
    ):
        with pytest.raises(UserError, match="holds other data"):
            prepare(other[0], other[1], out, val_fraction=other[2], progress=False)
    assert everything(out) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match="not a prepared folder"):
        prepare(str(jsonl), "bytes", tmp_path / "mine", progress=False)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"


def test_a_damaged_result_is_not_taken_for_done(jsonl: Path, tmp_path: Path) -> None:
    out = prepare(str(jsonl), "bytes", tmp_path / "out", progress=False)
    (out / "val-00000.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"val-00000.bin is truncated"):
        prepare(str(jsonl), "bytes", out, progress=False)


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_one_split_may_have_everything(
    corpus: list[str], jsonl: Path, tmp_path: Path, fraction: float
) -> None:
    out = prepare(str(jsonl), "bytes", tmp_path / "out", val_fraction=fraction, progress=False)
    full, empty = ("val", "train") if fraction else ("train", "val")
    assert texts(out, full) == "".join(corpus)
    assert Shards.open(out, empty).n_tokens == 0


@pytest.mark.parametrize("ending", ["", "\n", "\nno newline"])
def test_one_document_is_cut_at_a_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "one.txt"
    path.write_text("".join(f"line {i}\n" for i in range(20_000)) + ending)
    out = prepare(str(path), "bytes", tmp_path / "out", val_fraction=0.1, progress=False)
    train, val = texts(out, "train"), texts(out, "val")
    assert train + val == path.read_text()
    assert train.endswith("\n")
    assert val.startswith("line")
    assert abs(len(val) / (len(train) + len(val)) - 0.1) < 1e-3
    assert "one document" in read_manifest(out).note


@pytest.mark.parametrize(
    "text",
    ["Title\n" + "word " * 4000, "a line\n" * 800 + "word " * 3000 + "\nend", "x" * 20_000],
    ids=["title", "long last line", "one word"],
)
def test_one_document_holds_out_what_it_says(text: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "one.txt").write_text(text)
    out = prepare(str(tmp_path / "one.txt"), "bytes", tmp_path / "out", val_fraction=0.1)
    train, val = Shards.open(out, "train"), Shards.open(out, "val")
    assert 0.05 < val.n_bytes / len(text) < 0.15
    decoded = "".join(bytes(split[1 : len(split)].tolist()).decode() for split in (train, val))
    assert decoded == text
    said = capsys.readouterr().err
    assert f"val    {val.n_tokens:,} tokens in 1 document, {val.n_bytes / len(text):.1%}" in said


@pytest.mark.parametrize("text", ["a" * 100, "a" * 99 + "\n", "ab", "x\n" + "a" * 98])
def test_one_line_is_cut_too(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.txt").write_text(text)
    out = prepare(str(tmp_path / "one.txt"), "bytes", tmp_path / "out", progress=False)
    assert texts(out, "train") + texts(out, "val") == text
    assert texts(out, "train")
    assert texts(out, "val")


def test_two_documents_are_one_each(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    out = prepare(str(tmp_path / "*.txt"), "bytes", tmp_path / "out", progress=False)
    assert (texts(out, "train"), texts(out, "val")) == ("a", "b")


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source, text in (
        ("-", "some\ntext\n"),
        ("-.jsonl", '{"text": "some\\n"}\n{"text": "text\\n"}'),
    ):
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr(sys, "stdin", stdin)
        out = prepare(source, "bytes", tmp_path / source, progress=False)
        assert texts(out, "train") + texts(out, "val") == "some\ntext\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"ab\xff", "not valid UTF-8 at byte 2"), (b"\0", "binary file")],
)
def test_a_mistake_leaves_nothing(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "source.txt").write_bytes(content)
    with pytest.raises(UserError, match=said):
        prepare(str(tmp_path / "source.txt"), "bytes", tmp_path / "out", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["source.txt"]


def test_other_mistakes(ready: Path, jsonl: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="val_fraction is a share"):
        prepare(str(jsonl), "bytes", tmp_path / "out", val_fraction=2, progress=False)
    with pytest.raises(UserError, match="is prepared already"):
        prepare(str(ready), "bytes", tmp_path / "out", progress=False)
    with pytest.raises(UserError, match="is inside the source"):
        prepare(str(jsonl.parent), "bytes", jsonl.parent / "new" / "out", progress=False)
    with pytest.raises(UserError, match="needs text to train on"):
        prepare(str(jsonl), "bpe:300", tmp_path / "out", val_fraction=1, progress=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        prepare(str(jsonl), "bytes", tmp_path / "file" / "out", progress=False)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_refused_before_the_work(
    jsonl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """At the end nothing could be moved there, and all would be lost."""
    monkeypatch.setattr(encode, "_encoded", lambda *_: pytest.fail("it has started"))
    if there:
        (tmp_path / "scratch").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "scratch")
    with pytest.raises(UserError, match="out is a link"):
        prepare(str(jsonl), "bytes", tmp_path / "out", progress=False)


def test_a_source_that_changes_is_noticed(
    jsonl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copy(jsonl, tmp_path))
    encoded = encode._encoded

    def meddle(*arguments):
        with source.open("a") as handle:
            handle.write('{"text": "late"}\n')
        return encoded(*arguments)

    monkeypatch.setattr(encode, "_encoded", meddle)
    with pytest.raises(UserError, match="changed while it was read"):
        prepare(str(source), "bytes", tmp_path / "out", progress=False)


def test_a_full_disk_is_one_line(jsonl: Path, tmp_path: Path) -> None:
    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    code = f"from unitsphere.data import prepare; prepare({str(jsonl)!r}, 'bytes', 'out')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        preexec_fn=fill,
        capture_output=True,
        text=True,
    )
    assert "UserError: cannot write" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing_finished(tmp_path: Path, how: signal.Signals) -> None:
    source = tmp_path / "big.txt"
    source.write_text("some words, a line\n" * 500_000)
    arguments = (str(source), "bytes", tmp_path / "out")
    code = "import sys; from unitsphere.data import prepare; prepare(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stderr=subprocess.DEVNULL
    )
    partial = tmp_path / ".out.partial"
    while not (partial / "train-00000.bin").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(how)
    assert process.wait(60) != 0
    assert not (tmp_path / "out").exists()
    assert partial.exists() == (how == signal.SIGKILL)
    prepare(*arguments, progress=False)
    assert not partial.exists()
    splits = (Shards.open(tmp_path / "out", split) for split in ("train", "val"))
    stream = b"".join(shards[1:].astype("uint8").tobytes() for shards in splits)
    assert stream == source.read_bytes()


def _prepare_once(source: str, out: str) -> None:
    begun = encode.write_shards

    def counted(*arguments) -> None:
        Path(out).with_name(f"worked-{os.getpid()}").touch()
        begun(*arguments)

    sys.modules["unitsphere.data.prepare"].write_shards = counted  # type: ignore
    prepare(source, "bpe:300", out, progress=False)


def test_several_processes_do_the_work_once(jsonl: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    out = tmp_path / "out"
    processes = [
        context.Process(target=_prepare_once, args=(str(jsonl), str(out))) for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert len(list(tmp_path.glob("worked-*"))) == 1
    assert not list(tmp_path.glob(".*"))
    for split in ("train", "val"):
        Shards.open(out, split).verify()


def test_a_config_is_prepared_in_its_cache(jsonl: Path, tmp_path: Path) -> None:
    config = DataConfig(source=str(jsonl), tokenizer="bytes", cache=str(tmp_path / "cache"))
    folder = prepared(config, progress=False)
    assert folder.parent == tmp_path / "cache"
    assert prepared(config, progress=False) == folder
    other = DataConfig(source=str(jsonl), tokenizer="bpe:300", cache=config.cache)
    assert prepared(other, progress=False) != folder
    with pytest.raises(UserError, match="cannot be resumed from standard input"):
        prepared(DataConfig(source="-"))


def test_a_prepared_source_must_have_the_tokenizer(
    ready: Path, jsonl: Path, tmp_path: Path
) -> None:
    assert prepared(DataConfig(source=str(ready))) == ready
    assert prepared(DataConfig(source=str(ready), tokenizer="bytes")) == ready
    assert prepared(DataConfig(source=str(ready), tokenizer=str(ready))) == ready
    with pytest.raises(UserError, match="prepared with the tokenizer bytes, not bpe:1024"):
        prepared(DataConfig(source=str(ready), tokenizer="bpe:1024"))
    other = prepare(str(jsonl), "bpe:300", tmp_path / "bpe", progress=False)
    with pytest.raises(UserError, match="another tokenizer"):
        prepared(DataConfig(source=str(ready), tokenizer=str(other / "tokenizer.json")))


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    """One text without a newline, one giant document in JSONL, many small ones."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "line.txt").write_text("words and more words " * 2_000_000)
    with (tmp_path / "one" / "lines.jsonl").open("w") as handle:
        handle.write(json.dumps({"text": "0123456789" * 1_000_000}) + "\n")
        handle.writelines('{"text": "small"}\n' for _ in range(50_000))
    code = (
        "from unitsphere.data import prepare; prepare('one', 'bytes', 'out', progress=False); "
        "print(*(s.split()[1] for s in open('/proc/self/status') if s.startswith('VmHWM')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 200 * 1024  # KiB; the input has 51 MB.
    assert Shards.open(tmp_path / "out").n_documents > 40_000


def test_progress_is_lines_where_there_is_no_terminal(
    jsonl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unitsphere.data.encode.LINE_EVERY", 0.0)
    prepare(str(jsonl), "bytes", tmp_path / "out")
    output = capsys.readouterr()
    assert "tokenizing: 0 of 0 MB" in output.err
    assert "\x1b" not in output.err
    assert output.out == ""


def test_progress_is_a_bar_on_a_terminal(
    jsonl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    prepare(str(jsonl), "bpe:300", tmp_path / "out")
    assert "training bpe:300" in capsys.readouterr().err
