"""The supervisor's pieces: runtime folder, HTTP socket, report pipe."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.commands import BY_NAME
from penstock.config.settings import (
    CacheSettings,
    EngineConfig,
    MetricsSettings,
    ParallelSettings,
    RecordSettings,
    ServeConfig,
    WorkerSettings,
)
from penstock.errors import InvalidRequest, StartupError
from penstock.net import listener
from penstock.net.runtime_dir import MAX_IPC_PATH, PREFIX, RuntimeDir
from penstock.supervisor import replicas
from penstock.supervisor.child import ChildSpec, start
from penstock.supervisor.gpus import devices_of_workers, visible_gpus
from penstock.supervisor.replicas import EngineAddresses, make_replicas, share
from penstock.supervisor.report import StartupReport


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
        "from penstock.net.runtime_dir import RuntimeDir\n"
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


def test_a_child_that_outlives_its_owner_keeps_no_folder(tmp_path: Path) -> None:
    """One that is stopped doesn't see that its parent is gone; and none removes its parent's."""
    code = (
        "import os, pathlib, signal, sys\n"
        "from penstock.net.runtime_dir import RuntimeDir\n"
        "runtime = RuntimeDir.create(pathlib.Path(sys.argv[1]))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    runtime.remove()\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "os.waitpid(child, os.WUNTRACED)\n"
        "print(child, runtime.path.exists(), file=open(sys.argv[2], 'w'), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    told = tmp_path / "told"
    # The paths of sockets are short, and pytest's folders are not.
    with tempfile.TemporaryDirectory(prefix="own-") as name:
        base = Path(name)
        subprocess.run([sys.executable, "-c", code, name, str(told)], check=False)
        child, there = told.read_text().split()
        try:
            assert there == "True"
            (abandoned,) = base.iterdir()
            RuntimeDir.create(base).remove()
            assert not abandoned.exists()
        finally:
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize("make", ["write", "folder"])
def test_a_runtime_folder_without_room_is_one_line_that_names_it(tmp_path: Path, make: str) -> None:
    runtime = RuntimeDir.create(tmp_path)
    (runtime.path / "config.json").mkdir()
    (runtime.path / "models").touch()
    made = {
        "write": lambda: runtime.write("config.json", b"{}"),
        "folder": lambda: runtime.folder("models"),
    }
    with pytest.raises(StartupError, match=f"^the runtime folder {runtime.path} can't be written"):
        made[make]()
    runtime.remove()


def test_stdout_on_a_full_disk_ends_no_server() -> None:
    code = (
        "from penstock.cli import serve\n"
        "for text in ('Penstock is ready', 'again'):\n"
        "    serve._print(text)\n"
    )
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


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
        socket.create_connection((host, port), timeout=60).close()


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(StartupError, match=r"--host not\.an\.address\.invalid"):
        listener.bind("not.an.address.invalid", 0)


def test_urls() -> None:
    assert listener.url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert listener.url("::1", 80) == "http://[::1]:80"


def test_a_report_is_one_json_line_and_only_the_first_counts() -> None:
    reading, writing = os.pipe()
    report = StartupReport(writing)
    report.send_error('no "such" model')
    report.send_ready()
    os.close(writing)
    with os.fdopen(reading) as lines:
        assert [json.loads(line) for line in lines] == [{"error": 'no "such" model'}]


async def test_the_end_of_the_reports_reader_is_noticed() -> None:
    reading, writing = os.pipe()
    report, gone = StartupReport(writing), asyncio.Event()
    report.watch(gone.set)
    await asyncio.sleep(0.05)
    assert not gone.is_set()
    os.close(reading)
    await asyncio.wait_for(gone.wait(), 60)
    report.send_ready()  # nobody reads it, and nothing is raised
    os.close(writing)


def test_a_report_needs_an_open_descriptor() -> None:
    with pytest.raises(InvalidRequest, match="--report-fd 2147483647: no such file"):
        StartupReport(2**31 - 1)


def test_a_report_needs_a_pipe(tmp_path: Path) -> None:
    """The end of a file's reader can't be noticed."""
    with (
        (tmp_path / "report").open("w") as file,
        pytest.raises(InvalidRequest, match=r"--report-fd \d+ must be a pipe or a socket"),
    ):
        StartupReport(file.fileno())


def test_engine_cores_share_out_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "usable_cores", lambda: 7.0)
    cache = CacheSettings(kv_memory_fraction=0.6, host_kv_gib=3.0)
    config = EngineConfig(cache=cache, record=RecordSettings(record_dir="/rec"))
    parts = [share(config, number, 3) for number in range(3)]
    assert [part.worker.threads for part in parts] == [3, 2, 2]
    assert sum(part.cache.kv_memory_fraction for part in parts) == pytest.approx(0.6)
    assert sum(part.cache.kv_memory_gib for part in parts) == pytest.approx(4.0)
    assert sum(part.cache.host_kv_gib for part in parts) == pytest.approx(3.0)
    assert [part.record.record_dir for part in parts] == [f"/rec/engine-{n}" for n in range(3)]
    # There is at least one thread, and what was said of each holds.
    assert share(config, 8, 9).worker.threads == 1
    given = EngineConfig(worker=WorkerSettings(threads=5))
    assert share(given, 1, 2).worker.threads == 5
    assert share(config, 0, 1) == config


def test_metrics_ports_follow_one_another() -> None:
    given = MetricsSettings(engine_metrics_port=9100, worker_metrics_port=0)
    parts = [share(EngineConfig(metrics=given), number, 3).metrics for number in range(3)]
    assert [part.engine_metrics_port for part in parts] == [9100, 9101, 9102]
    assert [part.worker_metrics_port for part in parts] == [0, 0, 0]
    last = EngineConfig(metrics=MetricsSettings(worker_metrics_port=65_535))
    with pytest.raises(StartupError, match="engine core 1 would have the metrics port 65536"):
        share(last, 1, 2)


def test_ranks_share_what_their_engine_core_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "usable_cores", lambda: 13.0)
    config = EngineConfig(
        cache=CacheSettings(kv_memory_fraction=0.6, host_kv_gib=3.0),
        parallel=ParallelSettings(tensor_parallel_size=3, pipeline_parallel_size=1),
        metrics=MetricsSettings(worker_metrics_port=9200, engine_metrics_port=9100),
        record=RecordSettings(record_dir="/rec"),
    )
    alone = share(config, 0, 1)
    assert alone.worker.threads == 4  # the same for each
    assert alone.cache.kv_memory_fraction == pytest.approx(0.2)
    assert alone.cache.host_kv_gib == pytest.approx(1.0)
    assert alone.record.record_dir == "/rec"
    two = [share(config, number, 2) for number in range(2)]
    assert [part.worker.threads for part in two] == [2, 2]
    assert two[0].cache.kv_memory_fraction == pytest.approx(0.1)
    # A worker adds its rank.
    assert [part.metrics.worker_metrics_port for part in two] == [9200, 9203]
    assert [part.metrics.engine_metrics_port for part in two] == [9100, 9101]
    last = EngineConfig(
        metrics=MetricsSettings(worker_metrics_port=65_534), parallel=config.parallel
    )
    with pytest.raises(StartupError, match="would have the metrics port 65536"):
        share(last, 0, 1)


def test_engine_cores_have_places_of_their_own(tmp_path: Path) -> None:
    runtime, default = RuntimeDir.create(tmp_path), EngineAddresses()
    try:
        [one] = make_replicas(ServeConfig(), runtime, tmp_path, default, 7.0)
        assert (one.engine.name, [each.name for each in one.workers]) == ("engine", ["worker 0"])
        assert one.engine.grace == 7.0
        assert "--index" not in one.engine.arguments
        config = ServeConfig(data_parallel_size=2)
        two = make_replicas(config, runtime, tmp_path, default, 7.0)
        names = [(each.engine.name, *(one.name for one in each.workers)) for each in two]
        assert names == [("engine 0", "worker 0"), ("engine 1", "worker 1")]
        assert len({each.frontends for each in two}) == 2
        places = EngineAddresses("ipc:///a,ipc:///b", "ipc:///c,ipc:///d")
        given = make_replicas(config, runtime, tmp_path, places, 7.0)
        assert [each.frontends for each in given] == ["ipc:///a", "ipc:///b"]
        assert [told(each.workers[0], "--engine-endpoint") for each in given] == [
            "ipc:///c",
            "ipc:///d",
        ]
        for wrong, flag in (
            (EngineAddresses("ipc:///a"), "frontend"),
            (EngineAddresses(None, "a"), "worker"),
        ):
            with pytest.raises(StartupError, match=f"--{flag}-endpoint has 1 places, --data-para"):
                make_replicas(config, runtime, tmp_path, wrong, 7.0)
    finally:
        runtime.remove()


def test_each_rank_is_a_worker_of_its_engine_core(tmp_path: Path) -> None:
    runtime = RuntimeDir.create(tmp_path)
    engine = EngineConfig(
        worker=WorkerSettings(device="cpu"),
        parallel=ParallelSettings(tensor_parallel_size=2, pipeline_parallel_size=2),
    )
    try:
        [one] = make_replicas(ServeConfig(engine=engine), runtime, tmp_path, EngineAddresses(), 7.0)
        assert [each.name for each in one.workers] == [f"worker {rank}" for rank in range(4)]
        assert [told(each, "--rank") for each in one.workers] == ["0", "1", "2", "3"]
        assert len({told(each, "--engine-endpoint") for each in one.workers}) == 1
        config = ServeConfig(engine=engine, data_parallel_size=2)
        _, second = make_replicas(config, runtime, tmp_path, EngineAddresses(), 7.0)
        assert [each.name for each in second.workers] == [f"worker {n}" for n in range(4, 8)]
        assert [told(each, "--rank") for each in second.workers] == ["0", "1", "2", "3"]
        assert [told(each, "--index") for each in second.workers] == ["4", "5", "6", "7"]
        parser = BY_NAME["worker"].parser()
        for each in second.workers:
            parser.parse_args(each.arguments[1:])
    finally:
        runtime.remove()


def told(spec: ChildSpec, flag: str) -> str:
    return spec.arguments[spec.arguments.index(flag) + 1]


def test_each_worker_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f,1, 7")
    runtime = RuntimeDir.create(tmp_path)
    engine = EngineConfig(parallel=ParallelSettings(tensor_parallel_size=2))
    try:
        config = ServeConfig(engine=engine, data_parallel_size=2)
        made = make_replicas(config, runtime, tmp_path, EngineAddresses(), 7.0)
        seen = [dict(spec.environment) for each in made for spec in each.workers]
        assert seen == [{"CUDA_VISIBLE_DEVICES": name} for name in ("3", "GPU-5f", "1", "7")]
    finally:
        runtime.remove()


def test_gpus_are_counted_without_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == ["1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, tmp_path) == ["0"]
    assert visible_gpus({}, tmp_path / "none") == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: a)'\necho '  MIG 1g (UUID: b)'\n")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(program))
    assert visible_gpus({}, tmp_path) == ["0"]


def test_fewer_gpus_than_workers_is_said_and_none_is_the_cpu() -> None:
    auto, cuda = WorkerSettings(), WorkerSettings(device="cuda")
    assert devices_of_workers(auto, 2, list) == [None, None]
    assert devices_of_workers(WorkerSettings(device="cpu"), 2, lambda: ["0"]) == [None, None]
    on_cpu = WorkerSettings(attention_backend="reference")
    assert devices_of_workers(on_cpu, 2, lambda: ["0"]) == [None, None]
    assert devices_of_workers(cuda, 1, lambda: ["4", "5"]) == ["4"]
    for settings in (cuda, auto):
        with pytest.raises(StartupError, match="2 workers need a GPU each, and there are only 1"):
            devices_of_workers(settings, 2, lambda: ["0"])
    for count in (1, 2):
        with pytest.raises(StartupError, match="no GPU was found: say --device cpu"):
            devices_of_workers(cuda, count, list)


def test_a_child_gets_its_own_variables(tmp_path: Path) -> None:
    spec = ChildSpec("one", ("doctor", "--help"), environment=(("COLUMNS", "40"),))

    async def run() -> str:
        process = await start(spec, tmp_path / "failure", stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        return output.decode()

    assert "Checks processor, memory, libraries,\nports" in asyncio.run(run())
