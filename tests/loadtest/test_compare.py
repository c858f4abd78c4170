"""The comparison, with scripted servers in the places of real ones."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from loadtest.peers.cells import CELLS, Cell
from loadtest.peers.compare import COMMAND, SERVERS
from loadtest.peers.peer import PeerFailed
from loadtest.peers.rounds import Outcome, Rounds, take_turns
from loadtest.peers.servers import RunningServer, Server, make_server
from loadtest.report.facts import ROOT
from loadtest.report.files import Document, SetupError
from penstock_bench.load.record import ErrorKind, RequestRecord
from penstock_bench.load.report import summarise
from testing.descendants import descendants

TINY = (
    Cell("1 stream", 1, 2, 5, 4, seconds=10, warmup=1),
    Cell("3 streams", 3, 6, 5, 4, seconds=10, warmup=1),
)
FACTS = {
    "command": "python -m loadtest.peers.compare",
    "started": "2020-01-02T03:04:05",
    "machine": {"cpu": "a CPU", "cores": 2.0, "memory_bytes": 2**30, "python": "3.11"},
    "model": "m.gguf",
}


def scripted(name: str, *flags: str) -> Server:
    return Server(
        name=name,
        command=[sys.executable, "-m", "testing.scripted_server", *flags],
        ready_path="/ready",
        version="1",
        environment={"PYTHONPATH": str(ROOT)},
    )


def compared(servers: Sequence[Server], work: Sequence[Cell], rounds: int, logs: Path) -> Rounds:
    *_, last = take_turns(servers, work, rounds=rounds, budget=100, logs=logs)
    return last


def document_of(rounds: Rounds) -> Document:
    """The document as the JSON file has it."""
    document: Document = json.loads(json.dumps({**FACTS, **SERVERS.document(rounds)}))
    return document


def lives(pid: int) -> bool:
    """A zombie that nobody has waited for yet doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_servers_take_turns_and_all_is_written(tmp_path: Path) -> None:
    servers = [scripted("quick"), scripted("slow", "--first-delay", "0.1")]
    comparison = compared(servers, TINY, 2, tmp_path)
    assert comparison.done == 2
    for outcome in comparison.outcomes:
        assert not outcome.failures
        assert outcome.ready_s
        assert outcome.memory_bytes
        assert [len(runs) for runs in outcome.runs.values()] == [2, 2]
        assert [run.completed for run in outcome.runs["3 streams"]] == [6, 6]
    document = document_of(comparison)
    slow = SERVERS.median(document, "slow", TINY[0], "ttft_p50_ms")
    assert slow is not None
    assert slow.value >= 100
    markdown = SERVERS.text(document)
    assert markdown.count("| quick") == markdown.count("| slow") == 3
    runs = document["servers"]["quick"]["cells"]["1 stream"]["runs"]
    assert [run["completed"] for run in runs] == [2, 2]
    SERVERS.draw(tmp_path / "chart.png", document)
    assert (tmp_path / "chart.png").read_bytes()[:4] == b"\x89PNG"


def test_a_server_that_fails_is_named_and_the_others_run(tmp_path: Path) -> None:
    broken = dataclasses.replace(
        scripted("broken"), command=[sys.executable, "-c", "raise SystemExit('why')"]
    )
    comparison = compared([broken, scripted("good")], TINY[:1], 1, tmp_path)
    bad, good = comparison.outcomes
    assert "broken ended with 1:\nwhy" in bad.failures[0]
    assert good.runs["1 stream"][0].completed == 2
    document = document_of(comparison)
    assert "- broken: broken ended with 1" in SERVERS.text(document)
    assert COMMAND.faults(document)
    SERVERS.draw(tmp_path / "chart.png", document)


def test_not_ready_in_time_stops_the_server(tmp_path: Path) -> None:
    code = "import time; time.sleep(100)  # test_not_ready_in_time"
    server = dataclasses.replace(
        scripted("sleeper"), command=[sys.executable, "-c", code], start_timeout=0.7
    )
    with (
        pytest.raises(PeerFailed, match="not ready within"),
        RunningServer(server, tmp_path / "log"),
    ):
        pass
    assert descendants(code) == []


@pytest.mark.parametrize("own_session", [False, True])
def test_stopping_leaves_no_process(tmp_path: Path, own_session: bool) -> None:
    """The server has a child that ignores SIGTERM."""
    code = (
        "import http.server, signal, subprocess, sys\n"
        "stubborn = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);'\n"
        "stubborn += 'print(1, flush=True); time.sleep(100)'\n"
        "child = subprocess.Popen([sys.executable, '-c', stubborn], stdout=subprocess.PIPE,\n"
        f"    start_new_session={own_session})\n"
        "child.stdout.read(1)\n"
        "print(child.pid, flush=True)\n"
        "handler = http.server.SimpleHTTPRequestHandler\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[2])), handler).serve_forever()\n"
    )
    server = dataclasses.replace(
        scripted("stubborn"),
        command=[sys.executable, "-c", code],
        ready_path="/",
    )
    with RunningServer(server, tmp_path / "log") as running:
        child = int((tmp_path / "log").read_text().split()[0])
        assert lives(child)
        assert running.memory() > 5 * 2**20  # two interpreters
        running.stop(grace=0.5)
    deadline = time.monotonic() + 60  # the signal takes a moment
    while lives(child):
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(0.01)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", running.port)) != 0


def test_what_was_cut_off_is_marked() -> None:
    records = [
        RequestRecord(0, 4, 0.0, 0.0, 2.0, array("d", [1.0, 2.0]), finish_reason="length"),
        RequestRecord(1, 4, 0.0, 0.0, 3.0, error=ErrorKind.CUT_OFF),
        RequestRecord(2, 4, 0.0, 0.0, 3.0, error=ErrorKind.CUT_OFF),
    ]
    outcome = Outcome(scripted("late"), {TINY[0].name: [summarise(records)]})
    markdown = SERVERS.text(document_of(Rounds([outcome], TINY[:1], done=1)))
    row = next(line for line in markdown.splitlines() if line.startswith("| late") and ">" in line)
    assert "> 3,000" in row
    assert [cell.strip() for cell in row.split("|")][-4:-1] == ["1", "2", "0"]
    assert "Cut off" in markdown


def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEERS_DIR", str(tmp_path))
    with pytest.raises(SetupError, match=r"install\.sh vllm"):
        make_server("vllm", Path("m.gguf"))
    with pytest.raises(SetupError, match="no server called"):
        make_server("other", Path("m.gguf"))
    assert COMMAND.main(["--servers", "llamacpp", "--model", "m.gguf"]) == 2
    assert "install.sh llamacpp" in capsys.readouterr().err


def test_a_round_of_the_default_run_is_bounded() -> None:
    """Each cell and warm-up at its limit, by all servers."""
    longest = sum(
        cell.seconds + cell.warmup_seconds
        for cell in CELLS
        for max_streams in (None, None, 1)  # llama-cpp-python's server takes one
        if max_streams is None or cell.streams <= max_streams
    )
    assert longest < 5.5 * 60
    assert all(cell.requests >= cell.streams for cell in CELLS)


def test_resident_servers_start_once_and_are_stopped_meanwhile(tmp_path: Path) -> None:
    servers = [scripted("first"), scripted("second")]
    stopped: list[int] = []
    for comparison in take_turns(servers, TINY[:1], rounds=2, budget=100, logs=tmp_path):
        last = comparison
        found = descendants("testing.scripted_server")
        deadline = time.monotonic() + 60  # the signal takes a moment
        while any(process.status() != psutil.STATUS_STOPPED for process in found):
            if time.monotonic() >= deadline:
                raise TimeoutError
            time.sleep(0.01)
        stopped.append(len(found))
    assert [len(o.runs["1 stream"]) for o in last.outcomes] == [2, 2]
    assert not any(run.failed for o in last.outcomes for run in o.runs["1 stream"])
    assert stopped == [2, 2, 0]  # at the end all are gone
    assert descendants("scripted_server") == []


def test_a_server_skips_cells_with_more_streams_than_it_takes(tmp_path: Path) -> None:
    server = dataclasses.replace(scripted("narrow"), one_stream=True)
    comparison = compared([server], TINY, 1, tmp_path)
    assert list(comparison.outcomes[0].runs) == ["1 stream"]
    assert SERVERS.text(document_of(comparison)).count("| narrow") == 2
