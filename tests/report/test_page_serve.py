"""The page over real HTTP: the latest, only for this machine, ended by Ctrl-C with a line."""

import http.client
import re
import shutil
import signal
import socket
import threading
from pathlib import Path

import pytest
from forked import Forked, wait_for
from report.made_up import make_run

from unitsphere.cli import main
from unitsphere.errors import UserError
from unitsphere.report.runs import files_below
from unitsphere.report.serve import server


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """A run's folder, and the port that its page is served at."""
    run = make_run(tmp_path_factory.mktemp("serve") / "run", "quickstart/ngpt", 400, until=50)
    with server(run, 0) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.05,))
        thread.start()
        yield run, http.server_address[1]
        http.shutdown()
        thread.join()


def ask(port: int, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_the_page_changes_with_the_run(serving):
    run, port = serving
    status, page = ask(port, "/")
    assert status == 200
    assert "step 50 of 400" in page
    version = ask(port, "/version")[1]
    assert f'data-live="{version}"' in page
    assert "connect-src 'self'" in page
    assert ask(port, "/version")[1] == version
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "tokens": 1, "time": 2.0, "loss": 3.0}\n')
    assert ask(port, "/version")[1] != version
    assert "step 60 of 400" in ask(port, "/")[1]


def test_there_is_one_page_and_no_file(serving):
    run, port = serving
    for path in ("/metrics.jsonl", "/../run/config.json", f"/{run}/config.json"):
        assert ask(port, path)[0] == 404


def test_a_foreign_page_cannot_reach_it_by_a_name_of_its_own(serving):
    _, port = serving
    assert ask(port, "/", Host="evil.example")[0] == 403
    assert ask(port, "/", Host=f"localhost:{port}")[0] == 200


def test_it_listens_on_this_machine_alone(serving):
    _, port = serving
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for address in others - {"127.0.0.1", "::1"}:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as connection:
            connection.settimeout(2)
            assert address.startswith("127.") or connection.connect_ex((address, port)) != 0


def test_a_port_that_is_taken_is_a_mistake_in_one_line(serving):
    run, port = serving
    with pytest.raises(UserError, match="give --port another"):
        server(run, port)


def test_a_browser_that_leaves_is_no_error(serving, monkeypatch):
    def leaves(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("unitsphere.report.serve.answer", leaves)
    with server(serving[0], 0) as http:
        http.RequestHandlerClass.do_GET(object.__new__(http.RequestHandlerClass))


def test_a_checkpoint_may_be_deleted_while_files_are_listed(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").touch()
    (tmp_path / "config.json").touch()
    found = files_below(tmp_path, "*.json")
    assert next(found).name == "config.json"
    shutil.rmtree(tmp_path / "old")
    assert list(found) == [tmp_path / "new" / "state.json"]


def test_ctrl_c_ends_it_with_a_line(serving, tmp_path):
    run, _ = serving
    process = Forked(main, ["report", str(run), "--serve", "--port", "0"], folder=tmp_path)
    said = tmp_path / "stderr"
    wait_for(lambda: "\n" in said.read_text() or process.poll() is not None, 60)
    found = re.search(r"http://127\.0\.0\.1:(\d+)/ until Ctrl-C", said.read_text())
    assert found, said.read_text()
    assert ask(int(found[1]), "/")[0] == 200
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(30)
    assert told.splitlines()[1:] == ["report: stopped serving"]
    assert process.poll() == 0


@pytest.mark.parametrize(
    "words", [["--json"], ["--out", "x.html"], ["--samples", "1"], ["--port", "70000"]]
)
def test_options_that_do_not_go_together(serving, words, capsys):
    run, _ = serving
    assert main(["report", str(run), "--serve", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not Path("x.html").exists()


def test_a_port_is_refused_where_nothing_is_served(serving, capsys):
    run, _ = serving
    assert main(["report", str(run), "--port", "0"]) == 2
    assert "--port needs --serve" in capsys.readouterr().err
