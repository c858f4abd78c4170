"""The supervisor's pieces: runtime folder, HTTP socket, report pipe."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest, StartupError
from penstock.supervisor import listener
from penstock.supervisor.report import Report
from penstock.supervisor.runtime_dir import MAX_IPC_PATH, PREFIX, RuntimeDir


def test_the_runtime_folder_is_private_and_goes_with_its_contents(tmp_path: Path) -> None:
    runtime = RuntimeDir.create(tmp_path)
    assert runtime.path.stat().st_mode & 0o777 == 0o700
    assert runtime.endpoint("frontend") == f"ipc://{runtime.path}/frontend.sock"
    (runtime.path / "config.json").write_text("{}")
    runtime.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    base = tmp_path / ("x" * MAX_IPC_PATH)
    base.mkdir()
    with pytest.raises(StartupError, match=r"too long a path.*XDG_RUNTIME_DIR"):
        RuntimeDir.create(base)
    assert list(base.iterdir()) == []


def test_a_folder_whose_owner_was_killed_is_removed_and_a_living_one_kept(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from penstock.supervisor.runtime_dir import RuntimeDir\n"
        "runtime = RuntimeDir.create(pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (abandoned,) = tmp_path.iterdir()
    stranger = tmp_path / f"{PREFIX}not-ours"
    stranger.mkdir()
    first = RuntimeDir.create(tmp_path)
    assert not abandoned.exists()
    second = RuntimeDir.create(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([first.path, second.path, stranger])
    first.remove()
    second.remove()


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_taken_port_is_one_line_that_names_it(taken: int) -> None:
    with pytest.raises(StartupError, match=f"^port {taken} on 127.0.0.1 is taken") as caught:
        listener.bind("127.0.0.1", taken)
    assert "\n" not in str(caught.value)


def test_port_0_is_a_free_one_and_a_wildcard_is_reached_by_loopback() -> None:
    with listener.bind("0.0.0.0", 0) as bound:
        host, port = listener.reachable_address(bound)
        assert host == "127.0.0.1"
        assert port > 0
        bound.listen()
        socket.create_connection((host, port), timeout=5).close()


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(StartupError, match=r"--host not\.an\.address\.invalid"):
        listener.bind("not.an.address.invalid", 0)


def test_urls() -> None:
    assert listener.url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert listener.url("::1", 80) == "http://[::1]:80"


def test_a_report_is_one_json_line_and_only_the_first_counts() -> None:
    reading, writing = os.pipe()
    report = Report(writing)
    report.send_error('no "such" model')
    report.send_ready()
    os.close(writing)
    with os.fdopen(reading) as lines:
        assert [json.loads(line) for line in lines] == [{"error": 'no "such" model'}]


async def test_the_end_of_the_reports_reader_is_noticed() -> None:
    reading, writing = os.pipe()
    report, gone = Report(writing), asyncio.Event()
    report.watch(gone.set)
    await asyncio.sleep(0.05)
    assert not gone.is_set()
    os.close(reading)
    await asyncio.wait_for(gone.wait(), 5)
    report.send_ready()  # nobody reads it, and nothing is raised
    os.close(writing)


def test_a_report_needs_an_open_descriptor() -> None:
    with pytest.raises(InvalidRequest, match="--report-fd 987"):
        Report(987)
