"""Several engine cores on one machine, each with its workers: their arguments."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

import msgspec

from penstock.config.cache_settings import KVRole
from penstock.config.settings import (
    CacheSettings,
    EngineConfig,
    MetricsSettings,
    ServeConfig,
    WorkerSettings,
)
from penstock.errors import StartupError
from penstock.net.runtime_dir import RuntimeDir
from penstock.process.machine import usable_cores
from penstock.supervisor.child import ChildSpec
from penstock.supervisor.numa import nodes_of_engine, with_nodes


@dataclass(frozen=True)
class Replica:
    """One engine core and its workers, by rank. frontends: where the engine core takes front
    ends."""

    frontends: str
    engine: ChildSpec
    workers: tuple[ChildSpec, ...]


@dataclass(frozen=True)
class EngineAddresses:
    """Where engine cores are to listen, with commas; None: in the runtime folder."""

    frontends: str | None = None
    workers: str | None = None


def make_replicas(
    config: ServeConfig,
    runtime: RuntimeDir,
    model_dir: Path,
    given: EngineAddresses,
    grace: float,
) -> list[Replica]:
    """Replicas, as many as the configuration says, each with a configuration file of its own.

    grace: seconds that an engine core gets to leave.  Raises StartupError where `given` has another
    number of places, or the machine hasn't what the workers need.
    """
    config = with_nodes(config, model_dir, lambda: _on_gpus(config))
    count, ranks = config.data_parallel_size, config.engine.parallel.ranks
    executor = executor_of(config)
    fronts = _frontends(runtime, count, given.frontends)
    workers = worker_endpoints(runtime, count, given.workers)
    caches = kv_caches(config, runtime)
    replicas = []
    for number in range(count):
        settings = _settings(config, executor, number, caches[number])
        file = runtime.write(f"engine-{number}.json", msgspec.json.encode(settings))
        place = WorkerGroup(
            number, count, ranks, file, workers[number], model_dir, runtime.path / "ready"
        )
        replicas.append(_replica(place, fronts[number], executor, grace))
    return replicas


def _on_gpus(config: ServeConfig) -> bool:
    workers = config.data_parallel_size * config.engine.parallel.ranks
    return devices_of_workers(config.engine.worker, workers)[0] is not None


def _settings(
    config: ServeConfig, executor: Executor, number: int, cache: CacheSettings
) -> ServeConfig:
    engine = msgspec.structs.replace(config.engine, cache=cache)
    own = share(executor.settings(engine), number, config.data_parallel_size)
    return msgspec.structs.replace(config, engine=own)


def _frontends(runtime: RuntimeDir, count: int, given: str | None) -> list[str]:
    if given is not None:
        return split_places(given, count, "--frontend-endpoint")
    if count == 1:
        return [runtime.endpoint("frontend")]
    # No longer than that: there is a bound on the paths of sockets.
    return [runtime.endpoint(f"front{number}") for number in range(count)]


def _replica(place: WorkerGroup, frontends: str, executor: Executor, grace: float) -> Replica:
    engine = ("engine", "--config", str(place.config_file), *place.indexed)
    engine += ("--model-dir", str(place.model_dir))
    engine += ("--adapters-file", str(place.config_file.with_name("adapters.json")))
    engine += ("--sleep-file", str(place.config_file.with_name(f"asleep-{place.number}")))
    engine += ("--weights-file", str(place.config_file.with_name(f"weights-{place.number}")))
    endpoints = ("--frontend-endpoint", frontends, "--worker-endpoint", place.endpoint)
    name = "engine" if place.count == 1 else f"engine {place.number}"
    return Replica(
        frontends,
        ChildSpec(name, engine + endpoints, grace=grace),
        executor.workers(place),
    )


# Where the workers of an engine core run: what is started for them here (`--executor`).

RAY_GRACE = 15.0
"""Seconds to stop the workers of a cluster, and to give its resources back."""


@dataclass(frozen=True)
class WorkerGroup:
    """An engine core whose workers are wanted.

    number: of `count`.  config_file: its configuration.  endpoint: where workers dial it.
    model_dir: the prepared folder.  ready_file: exists from when the system was ready.
    """

    number: int
    count: int
    ranks: int
    config_file: Path
    endpoint: str
    model_dir: Path
    ready_file: Path

    @property
    def indexed(self) -> tuple[str, ...]:
        """What tells an engine core's processes apart, where there are several."""
        return ("--index", str(self.number)) if self.count > 1 else ()


class Executor(Protocol):
    """Makes the processes that are, or look after, the ranks of an engine core."""

    def settings(self, engine: EngineConfig) -> EngineConfig:
        """What an engine core is to tell its ranks where they run."""
        ...

    def workers(self, place: WorkerGroup) -> tuple[ChildSpec, ...]:
        """What to run here, for as long as the engine core runs."""
        ...


class LocalExecutor:
    """Starts a process next to the engine core for each rank, with a GPU of its own where there are
    any.

    Raises StartupError where there are too few.
    """

    def __init__(self, config: ServeConfig) -> None:
        worker, ranks = config.engine.worker, config.engine.parallel.ranks
        self._devices: Sequence[str | None] = devices_of_workers(
            worker, ranks * config.data_parallel_size
        )

    def settings(self, engine: EngineConfig) -> EngineConfig:
        return engine

    def workers(self, place: WorkerGroup) -> tuple[ChildSpec, ...]:
        return tuple(self._worker(place, rank) for rank in range(place.ranks))

    def _worker(self, place: WorkerGroup, rank: int) -> ChildSpec:
        index = place.number * place.ranks + rank
        arguments = ["worker", "--config", str(place.config_file)]
        if place.count > 1:
            arguments += ["--index", str(index)]
        arguments += ["--engine-endpoint", place.endpoint, "--rank", str(rank)]
        device = self._devices[index]
        return ChildSpec(
            f"worker {index}",
            tuple(arguments),
            environment=() if device is None else ((VISIBLE, device),),
        )


class RayExecutor:
    """One process that holds a placement group of a Ray cluster, with an actor for each rank.

    Raises StartupError where Ray is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise StartupError(
                "--executor ray needs Ray, which is not installed here: pip install"
                " 'penstock-llm[ray]'"
            )

    def settings(self, engine: EngineConfig) -> EngineConfig:
        """This machine's cores say nothing about those of the nodes: a rank computes with as many
        threads as it reserves CPUs, which is one where nothing else was said."""
        if engine.worker.threads is not None:
            return engine
        return msgspec.structs.replace(
            engine, worker=msgspec.structs.replace(engine.worker, threads=1)
        )

    def workers(self, place: WorkerGroup) -> tuple[ChildSpec, ...]:
        arguments = ("ray-workers", "--config", str(place.config_file), *place.indexed)
        arguments += ("--engine-endpoint", place.endpoint, "--model-dir", str(place.model_dir))
        arguments += ("--ready-file", str(place.ready_file))
        name = f"ray {place.number}" if place.count > 1 else "ray"
        return (ChildSpec(name, arguments, grace=RAY_GRACE),)


def executor_of(config: ServeConfig) -> Executor:
    """The one that the configuration names."""
    return RayExecutor() if config.executor == "ray" else LocalExecutor(config)


def worker_endpoints(runtime: RuntimeDir, count: int, given: str | None) -> list[str]:
    """Where the workers of each engine core dial. given: with commas; None: the runtime folder."""
    if given is None:
        if count == 1:
            return [runtime.endpoint("worker")]
        return [runtime.endpoint(f"worker{number}") for number in range(count)]
    return split_places(given, count, "--worker-endpoint")


def split_places(given: str, count: int, flag: str) -> list[str]:
    """One place for each engine core. Raises StartupError for another number of them."""
    places = given.split(",")
    if len(places) != count:
        raise StartupError(
            f"{flag} has {len(places)} places, --data-parallel-size is {count}: "
            "each engine core needs one"
        )
    return places


# Which GPUs there are, without loading CUDA, and which of them each worker gets.

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""CUDA's own variable: indices or UUIDs with commas, as `nvidia-smi -L` shows them."""

DRIVER = Path("/proc/driver/nvidia/gpus")
_PATIENCE = 20.0
_ON_CUDA = ("auto", "triton")
"""Kernel backends that a GPU can have."""


def devices_of_workers(
    worker: WorkerSettings, count: int, find: Callable[[], list[str]] | None = None
) -> list[str | None]:
    """What `count` workers of this machine are to see as CUDA_VISIBLE_DEVICES, one GPU each; None:
    what the supervisor sees.

    find: the GPUs that may be used (`visible_gpus`).  Raises StartupError where there are fewer
    GPUs than workers; with --device auto, none at all means the CPU.
    """
    if worker.device == "cpu" or worker.attention_backend not in _ON_CUDA:
        return [None] * count
    found = (find or visible_gpus)()
    if not found and worker.device == "auto":
        return [None] * count
    if not found:
        raise StartupError("no GPU was found: say --device cpu, or install torch for CUDA")
    if len(found) < count:
        raise StartupError(
            f"{count} workers need a GPU each, and there are only {len(found)}: ask for fewer with"
            " --tensor-parallel-size, --pipeline-parallel-size and --data-parallel-size, or say"
            " --device cpu"
        )
    return [*found[:count]]


def visible_gpus(environment: Mapping[str, str] = os.environ, driver: Path = DRIVER) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    said = environment.get(VISIBLE)
    if said is None:
        return [str(number) for number in range(_count(driver))]
    names = []
    for name in (part.strip() for part in said.split(",")):
        # CUDA, too, takes what stands before the first that is none.
        if not name or name.startswith("-"):
            break
        names.append(name)
    return names


def _count(driver: Path) -> int:
    """nvidia-smi is asked first: in a container, the driver's folder may show the host's GPUs."""
    program = shutil.which("nvidia-smi")
    if program is not None:
        try:
            done = subprocess.run(
                [program, "-L"], capture_output=True, text=True, timeout=_PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return 0
        lines = done.stdout.splitlines() if done.returncode == 0 else []
        return sum(line.startswith("GPU ") for line in lines)
    try:
        return sum(1 for _ in driver.iterdir())
    except OSError:
        return 0


# What several engine cores on one machine are for, and where they fetch KV of each other.

ROLES: tuple[KVRole, ...] = get_args(KVRole)


def kv_caches(config: ServeConfig, runtime: RuntimeDir) -> list[CacheSettings]:
    """The settings of each one's cache. Raises StartupError for roles that can't be."""
    count, cache = config.data_parallel_size, config.engine.cache
    if not config.kv_roles:
        _check_shared(count, cache)
        return [cache] * count
    roles = _roles(config.kv_roles, count)
    if cache.kv_endpoint or cache.kv_peers:
        raise StartupError("kv_roles makes endpoints by itself: leave out kv_endpoint and kv_peers")
    if config.executor != "local":
        raise StartupError(f"kv_roles is for workers here, and executor is {config.executor}")
    places = [runtime.endpoint(f"kv{number}") for number in range(count)]
    return [
        msgspec.structs.replace(cache, kv_role=role, kv_endpoint=place, kv_peers=",".join(places))
        for role, place in zip(roles, places, strict=True)
    ]


def _check_shared(count: int, cache: CacheSettings) -> None:
    if count > 1 and cache.kv_endpoint:
        raise StartupError(
            f"kv_endpoint is one place, and data_parallel_size is {count}: use kv_roles"
        )


def _roles(text: str, count: int) -> list[KVRole]:
    roles = [part.strip() for part in text.split(",")]
    wrong = next((each for each in roles if each not in ROLES), None)
    if wrong is not None:
        raise StartupError(f"kv_roles: {wrong!r} is not a role; allowed: {', '.join(ROLES)}")
    if len(roles) != count:
        raise StartupError(f"kv_roles has {len(roles)} roles, and data_parallel_size is {count}")
    if count < 2:
        raise StartupError("kv_roles is for several engine cores; data_parallel_size is 1")
    if all(role == "prefill" for role in roles):
        raise StartupError("kv_roles: somebody has to generate, too; all of them are prefill")
    return [role for each in roles for role in ROLES if role == each]


# What each engine core of a machine gets of it: threads, memory, ports. Its ranks share that.


def share(engine: EngineConfig, number: int, count: int) -> EngineConfig:
    """Returns the settings of engine core `number` of `count`: its part of threads and memory, and
    paths of its own.  All its ranks get the same, so threads and memory are given per rank.  What
    was set for one (`--threads`, `--num-kv-blocks`) holds for each."""
    ranks = engine.parallel.ranks
    if count * ranks == 1:
        return engine
    worker, cache, record = engine.worker, engine.cache, engine.record
    worker = nodes_of_engine(worker, number, ranks)
    if worker.threads is None:
        cores = math.ceil(usable_cores())
        own = cores // count + (number < cores % count)
        worker = msgspec.structs.replace(worker, threads=max(1, own // ranks))
    cache = msgspec.structs.replace(
        cache,
        # Those that start after it find less free; together they keep to the share.
        kv_memory_fraction=cache.kv_memory_fraction / (count * ranks),
        kv_memory_gib=cache.kv_memory_gib / (count * ranks),
        host_kv_gib=cache.host_kv_gib / (count * ranks),
    )
    if record.record_dir is not None and count > 1:
        folder = str(Path(record.record_dir) / f"engine-{number}")
        record = msgspec.structs.replace(record, record_dir=folder)
    return msgspec.structs.replace(
        engine,
        worker=worker,
        cache=cache,
        record=record,
        metrics=_own_ports(engine.metrics, number, ranks),
    )


def _own_ports(metrics: MetricsSettings, number: int, ranks: int) -> MetricsSettings:
    """The ports given are the first engine core's and its rank 0's; the others' follow them. A
    worker adds its rank to the port it gets."""
    changed, last = {}, 0
    for name, each in (("engine_metrics_port", 1), ("worker_metrics_port", ranks)):
        if port := getattr(metrics, name):  # 0 is any free one for each.
            changed[name] = port + number * each
            last = max(last, changed[name] + each - 1)
    if last > 65_535:
        raise StartupError(f"engine core {number} would have the metrics port {last}")
    return msgspec.structs.replace(metrics, **changed)
