"""`penstock serve` as a whole: start, failures, restarts, stop."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest

from penstock.net.runtime_dir import remove_abandoned
from testing.processes import freeze
from testing.serving import PATIENCE, Server, ServerFailed, wait_until

pytestmark = [pytest.mark.timeout(400)]

StartServer = Callable[..., Server]

SMALL = ("--num-kv-blocks", "64")
LOG_LINE = re.compile(r'time=\S+Z level=\w+ process=(\S+|"[^"]+") event=')


def errors_in(stderr: str) -> list[str]:
    """What a person is told: the lines that are not structured records."""
    return [line for line in stderr.splitlines() if not LOG_LINE.match(line)]


def open_files(pid: int) -> list[str]:
    """Paths in /proc that lead to them."""
    folder = f"/proc/{pid}/fd"
    return [f"{folder}/{number}" for number in os.listdir(folder)]


def fails_with(start_server: StartServer, *arguments: str, first: bool = False) -> str:
    """The one line that a failed start ends with. first: before any process was
    started, but the one that prepares the model."""
    with pytest.raises(ServerFailed) as caught:
        start_server(*arguments)
    assert caught.value.code == 1
    assert caught.value.stdout == ""
    told = errors_in(caught.value.stderr)
    assert len(told) == 1, told
    assert told[0].startswith("penstock: error: ")
    started = re.findall(r'event="child started" child=(\S+)', caught.value.stderr)
    assert not first or set(started) <= {"prepare"}
    return told[0]


def test_a_taken_port_is_one_clear_line(start_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = fails_with(start_server, "--port", str(port), first=True)
    assert f"port {port} " in line
    assert "taken" in line


def test_a_model_that_does_not_exist_is_one_clear_line(start_server: StartServer) -> None:
    assert "/no/such/model" in fails_with(start_server, "/no/such/model", first=True)


@pytest.mark.usefixtures("executed")
def test_a_worker_that_can_never_start_stops_everything_and_says_why(
    start_server: StartServer,
    tiny_model: str,
) -> None:
    line = fails_with(start_server, "--attention-backend", "abacus", tiny_model, *SMALL)
    assert "abacus" in line
    assert "reference" in line, "it says what there is"


def test_too_little_memory_is_one_clear_line(start_server: StartServer, tiny_model: str) -> None:
    line = fails_with(start_server, tiny_model, "--num-kv-blocks", "1000000000000")
    assert re.search(r"num_kv_blocks .* [\d,.]+ MiB are free", line)


def test_stdout_is_the_ready_message_and_its_curl_line_answers(server: Server) -> None:
    lines = server.stdout.splitlines()
    assert len(lines) == 4
    assert lines[0] == f"Penstock is ready: {server.model} on {server.url}"
    assert lines[1] == f"Chat: {server.url}/"
    if shutil.which("curl") is None:
        pytest.skip("the Debian package curl is not installed")
    assert lines[3].strip().startswith("curl ")
    with subprocess.Popen(
        ["bash", "-c", f"exec {lines[3].strip()} --silent --show-error --fail"],
        stdout=subprocess.PIPE,
        text=True,
    ) as curl:
        assert curl.stdout is not None
        text = ""
        for line in curl.stdout:
            if line.startswith("data: {"):
                delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                text += delta.get("content") or ""
            if "Paris" in text:
                break  # the rest of the answer takes its time on a slow machine
        curl.terminate()
    assert "Paris" in text


def test_stderr_holds_structured_records_only(server: Server) -> None:
    server.complete()
    assert server.stderr
    assert errors_in(server.stderr) == []


def test_ps_shows_what_each_process_is(start_server: StartServer, tiny_model: str) -> None:
    running = start_server("--gateways", "2", tiny_model, *SMALL)
    pids = ",".join(map(str, [running.process.pid, *running.children().values()]))
    shown = subprocess.run(
        ["ps", "-o", "args=", "-p", pids], capture_output=True, text=True, check=True
    ).stdout
    assert sorted(line.strip() for line in shown.splitlines()) == [
        "penstock: engine",
        "penstock: fork-server",
        "penstock: gateway 0",
        "penstock: gateway 1",
        "penstock: supervisor",
        "penstock: worker 0",
    ]
    (runtime,) = running.runtime_base.iterdir()
    assert runtime.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_a_signal_stops_everything_within_seconds(
    start_server: StartServer, tiny_model: str, signum: signal.Signals
) -> None:
    # Nothing is open, so nothing is waited for: nobody would see the end of this shutdown's time.
    running = start_server(tiny_model, *SMALL, "--shutdown-timeout", "600", "--log-format", "json")
    running.complete()
    assert running.stop(signum) == 0
    records = [json.loads(line) for line in running.stderr.splitlines()]
    assert {"supervisor", "engine", "worker 0", "gateway 0"} <= {
        record["process"] for record in records
    }
    begun = next(n for n, record in enumerate(records) if record["event"] == "stopping")
    troubles = [record for record in records[begun:] if record["level"] != "info"]
    assert troubles == [], "an orderly end is no warning"
    running.prove_gone()
    with pytest.raises(OSError, match="refused"):
        running.get("/health/live")


@pytest.mark.usefixtures("executed")
def test_ctrl_c_before_it_is_ready_is_an_interruption(
    start_server: StartServer, tiny_model: str
) -> None:
    running = start_server(tiny_model, *SMALL, wait=False)
    wait_until(lambda: 'event="child started"' in running.stderr)
    assert running.stop(signal.SIGINT) == 130
    running.prove_gone()
    assert errors_in(running.stderr) == []


@pytest.mark.usefixtures("executed")
@pytest.mark.parametrize("delay", [0.0, 0.3, 0.7, 1.2, 2.0])
def test_a_signal_while_it_starts_leaves_nothing_either(
    start_server: StartServer, tiny_model: str, delay: float
) -> None:
    running = start_server(tiny_model, *SMALL, wait=False)
    time.sleep(delay)
    assert running.stop() in (0, -signal.SIGTERM)  # the latter: before Python listens to signals
    running.prove_gone()
    assert errors_in(running.stderr) == []


@pytest.mark.usefixtures("executed")
def test_what_dies_is_started_again_and_serves(start_server: StartServer, tiny_model: str) -> None:
    running = start_server(tiny_model, *SMALL)
    expected = running.complete()
    for title in ("gateway 0", "worker 0", "engine", "fork-server"):
        before = running.children()
        os.kill(before[f"penstock: {title}"], signal.SIGKILL)
        # The supervisor keeps the socket: a connection made meanwhile waits, it isn't refused.
        assert running.get("/health/live", timeout=PATIENCE)[0] == 200
        wait_until(
            lambda title=title, before=before: (
                running.children().get(f"penstock: {title}")
                not in (None, before[f"penstock: {title}"])
            )
        )
        wait_until(running.ready, message=lambda: running.stderr[-5000:])
        assert running.complete() == expected
        after = running.children()
        for other in before.keys() - {f"penstock: {title}"}:
            assert after[other] == before[other], f"{other} was restarted when {title} died"
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(PATIENCE) == 0


def test_gateways_are_forks_and_those_that_are_renewed_of_a_renewed_server(
    start_server: StartServer, tiny_model: str
) -> None:
    """What is installed anew is in each, also in a later one."""
    running = start_server(tiny_model, *SMALL)
    expected = running.complete()

    def dies() -> str:
        pid = running.child("gateway 0")
        os.kill(pid, signal.SIGKILL)
        return successor(pid)

    def successor(pid: int) -> str:
        """What the supervisor logs of the process that takes the gateway's place."""
        wait_until(lambda: running.processes().get("gateway 0") not in (None, pid))
        wait_until(running.ready, message=lambda: running.stderr[-5000:])
        assert running.complete() == expected
        found = running.child("gateway 0")
        (line,) = [
            one
            for one in running.stderr.splitlines()
            if f"pid={found}" in one and "child started" in one
        ]
        return line

    assert "forked=True" in dies()
    source, gateway = running.child("fork-server"), running.child("gateway 0")
    running.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: 'event="gateways restarted"' in running.stderr)
    assert "forked=True" in successor(gateway)
    renewed = running.child("fork-server")
    assert renewed != source
    started = [running.stderr.index(f"pid={running.child(name)}") for name in BOTH]
    assert started == sorted(started)
    assert "forked=True" in dies()
    assert running.child("fork-server") == renewed


BOTH = ("fork-server", "gateway 0")


def test_one_that_dies_while_the_fork_server_is_renewed_is_replaced_at_once(
    start_server: StartServer, tiny_model: str
) -> None:
    """The former one forks until its successor could, which here stands still."""
    running = start_server(tiny_model, *SMALL)
    expected = running.complete()
    source, gateway = map(running.child, BOTH)
    running.process.send_signal(signal.SIGUSR2)
    supervisor = psutil.Process(running.process.pid)
    known = {each.pid for each in supervisor.children()}

    def successors() -> set[int]:
        return {each.pid for each in supervisor.children()} - known

    wait_until(lambda: bool(successors()))
    (successor,) = successors()
    freeze(successor)
    os.kill(gateway, signal.SIGKILL)
    assert running.complete() == expected
    assert psutil.pid_exists(source)
    assert 'event="gateways restarted"' not in running.stderr
    os.kill(successor, signal.SIGCONT)
    wait_until(
        lambda: 'event="gateways restarted"' in running.stderr,
        2 * PATIENCE,
        lambda: running.stderr[-5000:],
    )
    assert running.child("fork-server") == successor
    assert running.complete() == expected


def test_a_gateway_that_has_just_died_is_renewed_with_the_others(
    start_server: StartServer, tiny_model: str
) -> None:
    running = start_server(tiny_model, *SMALL, "--gateways", "2")
    expected = running.complete()
    before = running.processes()
    os.kill(before["gateway 0"], signal.SIGKILL)
    running.process.send_signal(signal.SIGUSR2)
    wait_until(
        lambda: 'event="gateways restarted"' in running.stderr,
        message=lambda: running.stderr[-5000:],
    )
    for name in ("gateway 0", "gateway 1"):
        pid = running.child(name)
        assert pid != before[name]
        source = running.stderr.index(f"pid={running.child('fork-server')}")
        assert running.stderr.index(f"pid={pid}") > source
    assert running.complete() == expected


def test_requests_that_come_while_no_gateway_lives_are_answered(
    start_server: StartServer, tiny_model: str
) -> None:
    """Their connections wait in the socket."""
    running = start_server(tiny_model, *SMALL, "--gateways", "2")
    expected = running.complete()
    for name in ("gateway 0", "gateway 1"):
        os.kill(running.child(name), signal.SIGKILL)
    with ThreadPoolExecutor(18) as pool:
        answers = [pool.submit(running.complete) for _ in range(18)]
        assert {each.result() for each in answers} == {expected}


def test_a_killed_supervisor_leaves_no_orphan(start_server: StartServer, tiny_model: str) -> None:
    running = start_server(tiny_model, *SMALL)
    pids = list(running.children().values())
    assert len(pids) == 4
    running.process.kill()
    running.process.wait()
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), message=lambda: str(pids))
    # Nobody was left to remove the runtime folder; the next start does.
    (abandoned,) = running.runtime_base.iterdir()
    remove_abandoned(running.runtime_base)
    assert not abandoned.exists()


def test_a_supervisor_that_is_killed_while_it_prepares_leaves_no_orphan(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process waits for a hub that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as hub:
        hub.settimeout(PATIENCE)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        running = start_server("somebody/some-model", wait=False)
        asked, _ = hub.accept()
        with asked:
            children = psutil.Process(running.process.pid).children()
            # What is there besides waits for the model.
            assert [each for each in children if "prepare" in " ".join(each.cmdline())]
            running.process.kill()
            running.process.wait()
            wait_until(
                lambda: not any(each.is_running() for each in children),
                message=lambda: str(children),
            )
    remove_abandoned(running.runtime_base)


def test_a_data_folder_has_one_server_until_it_is_killed(
    start_server: StartServer, tiny_model: str, tmp_path: Path
) -> None:
    flags = (tiny_model, *SMALL, "--data-dir", str(tmp_path))
    running = start_server(*flags)
    line = fails_with(start_server, *flags, first=True)
    assert f"{tmp_path} is in use by another server (pid {running.process.pid} on " in line
    assert "a folder of its own" in line
    lock = (tmp_path / "lock").stat()
    keeping = {
        title
        for title, pid in running.processes().items()
        if any(map(partial(os.path.samestat, lock), map(os.stat, open_files(pid))))
    }
    assert keeping == {"gateway 0", "batches"}
    assert running.post("/pause?mode=keep", {})[0] == 200
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(running.complete)
        wait_until(lambda: running.get("/status")[1]["engine"]["waiting"] == 1)
        running.process.kill()
        running.process.wait()
        with pytest.raises((OSError, HTTPException)):  # The connection breaks.
            asked.result(PATIENCE)
    assert start_server(*flags).complete()
    remove_abandoned(running.runtime_base)


def test_a_second_signal_kills_at_once(start_server: StartServer, tiny_model: str) -> None:
    running = start_server(tiny_model, *SMALL, "--shutdown-timeout", "600")
    for pid in running.children().values():
        freeze(pid)  # now SIGTERM has no effect on them
    running.process.send_signal(signal.SIGINT)
    heard = "event=stopping why=SIGINT"
    wait_until(lambda: heard in running.stderr, message=lambda: running.stderr)
    assert running.process.poll() is None
    assert running.stop(signal.SIGINT) == 0, "long before the shutdown's time is over"
    running.prove_gone()


def test_frozen_processes_do_not_keep_it_from_stopping(
    start_server: StartServer, tiny_model: str
) -> None:
    running = start_server(tiny_model, *SMALL, "--shutdown-timeout", "1")
    freeze(running.child("engine"))
    assert running.stop() == 0
    running.prove_gone()


def test_without_http_it_reports_over_a_pipe_and_leaves_with_its_reader(
    start_server: StartServer,
    tiny_model: str,
) -> None:
    reading, writing = os.pipe()
    running = start_server(
        *("--no-http", "--report-fd", str(writing), tiny_model, *SMALL),
        wait=False,
        pass_fds=(writing,),
    )
    os.close(writing)
    assert select.select([reading], [], [], 2 * PATIENCE)[0], running.stderr
    assert json.loads(os.read(reading, 4096))["ready"] is True
    assert sorted(running.children()) == ["penstock: engine", "penstock: worker 0"]
    assert running.stdout == ""
    os.close(reading)
    assert running.process.wait(PATIENCE) == 0
    running.prove_gone()


def test_without_http_a_failure_is_reported_over_the_pipe(start_server: StartServer) -> None:
    reading, writing = os.pipe()
    running = start_server(
        *("/no/such/model", "--no-http", "--report-fd", str(writing)),
        wait=False,
        pass_fds=(writing,),
    )
    os.close(writing)
    assert running.process.wait(2 * PATIENCE) == 1
    with os.fdopen(reading) as report:
        assert "/no/such/model" in json.loads(report.read())["error"]
