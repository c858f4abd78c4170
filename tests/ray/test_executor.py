"""`--executor ray` as far as it goes without Ray: what is said, reached, reserved, and run."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.commands import BY_NAME
from penstock.config.settings import EngineConfig, ParallelSettings, ServeConfig, TransportSettings
from penstock.errors import StartupError
from penstock.net.runtime_dir import RuntimeDir
from penstock.supervisor.replicas import EngineAddresses, make_replicas
from penstock_ray.actor import End, RankActor, Task
from penstock_ray.driver import Wanted, main
from penstock_ray.reach import (
    Unavailable,
    check_reach,
    dialled_endpoint,
    worker_transport,
)

HERE, ELSEWHERE = "10.0.0.1", "10.0.0.2"


def test_workers_dial_this_node_where_the_engine_listens_on_all() -> None:
    assert dialled_endpoint("tcp://*:5571", HERE) == "tcp://10.0.0.1:5571"
    assert dialled_endpoint("tcp://0.0.0.0:5571", HERE) == "tcp://10.0.0.1:5571"
    for given in ("tcp://10.1.0.1:5571", "ipc:///run/penstock/worker.sock"):
        assert dialled_endpoint(given, HERE) == given


@pytest.mark.parametrize("endpoint", ["ipc:///run/w.sock", "tcp://127.0.0.1:1", "tcp://[::1]:1"])
def test_a_node_that_cannot_reach_the_engine_is_told_what_is_missing(endpoint: str) -> None:
    check_reach(endpoint, HERE, HERE, 0)
    with pytest.raises(Unavailable, match=r"rank 1 is on the node 10\.0\.0\.2.*--worker-endpoint"):
        check_reach(endpoint, ELSEWHERE, HERE, 1)
    check_reach("tcp://10.0.0.1:5571", ELSEWHERE, HERE, 1)


def test_workers_have_keys_of_their_own() -> None:
    given = TransportSettings(curve_dir="/keys/engine")
    assert worker_transport(given).curve_dir == "/keys/worker"
    assert worker_transport(TransportSettings()) == TransportSettings()


def test_one_process_holds_the_ranks_of_an_engine_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    engine = EngineConfig(parallel=ParallelSettings(tensor_parallel_size=2))
    runtime = RuntimeDir.create(tmp_path)
    try:
        config = ServeConfig(engine=engine, executor="ray", data_parallel_size=2)
        replicas = make_replicas(config, runtime, tmp_path, EngineAddresses(), 7.0)
        assert [[one.name for one in each.workers] for each in replicas] == [["ray 0"], ["ray 1"]]
        parser = BY_NAME["ray-workers"].parser()
        for each in replicas:
            (spec,) = each.workers
            arguments = parser.parse_args(spec.arguments[1:])
            assert arguments.engine_endpoint in each.engine.arguments
            assert arguments.ready_file == str(runtime.path / "ready")
    finally:
        runtime.remove()


def test_without_ray_there_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    runtime = RuntimeDir.create(tmp_path)
    try:
        with pytest.raises(StartupError, match=r"pip install 'penstock-llm\[ray\]'"):
            make_replicas(ServeConfig(executor="ray"), runtime, tmp_path, EngineAddresses(), 7.0)
    finally:
        runtime.remove()
    wanted = Wanted(EngineConfig(), "ipc:///x", str(tmp_path), lambda: True)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StartupError, match=r"pip install 'penstock-llm\[ray\]'"):
        main(wanted)
    monkeypatch.setenv("RAY_ADDRESS", "ray://somewhere:10001")
    with pytest.raises(StartupError, match="expected HOST:PORT"):
        main(wanted)


def test_a_cluster_that_is_not_there_is_final_until_the_system_was_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Later the supervisor tries again."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        for was_ready, kind in ((False, StartupError), (True, Unavailable)):
            wanted = Wanted(
                EngineConfig(), "ipc:///x", str(tmp_path), lambda ready=was_ready: ready
            )
            with pytest.raises(kind, match=f"no Ray cluster answers at {address}"):
                main(wanted)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A program in place of `python -m penstock`, which writes down what it was told; its end is
    as its endpoint says."""
    program = tmp_path / "penstock-stand-in"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/told\n'
        'case "$*" in\n'
        "*prepare*) echo /prepared/here ;;\n"
        '*ends-with-78*) for last; do :; done; echo "no such model" > "$last"; exit 78 ;;\n'
        "*) exec sleep 60 ;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return lambda: (tmp_path / "told").read_text().splitlines()


def task(endpoint: str, model_dir: str) -> Task:
    return Task(3, endpoint, b"{}", model_dir, ("prepare", "some-model"))


def test_an_actor_starts_the_worker_and_tells_how_it_ended(stand_in: Any, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    end = RankActor(HERE).run(task("tcp://ends-with-78", str(tmp_path)))
    assert end == End(78, "no such model")
    (told,) = stand_in()
    assert (
        f"--rank 3 --rank-host {HERE} --model-dir {tmp_path} --supervised-by {os.getpid()}" in told
    )


def test_a_node_without_the_model_prepares_it(stand_in: Any, tmp_path: Path) -> None:
    RankActor(HERE).run(task("tcp://ends-with-78", str(tmp_path / "elsewhere")))
    first, second = stand_in()
    assert "prepare some-model" in first
    assert "--model-dir /prepared/here" in second


def test_an_actor_stops_its_worker(stand_in: Any, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    actor, ends = RankActor(HERE), []
    thread = threading.Thread(
        target=lambda: ends.append(actor.run(task("tcp://lives", str(tmp_path))))
    )
    thread.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "told").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    actor.stop(5.0)
    thread.join(60)
    # One that has only just begun is killed.
    assert [end.code in (-signal.SIGTERM, -signal.SIGKILL) for end in ends] == [True]


def test_nothing_of_ray_is_loaded_where_nobody_asks_for_it() -> None:
    code = "import sys, penstock.supervisor.system, penstock_ray.driver;print('ray' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
