"""Several engine cores on one machine, each with its workers: their arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import msgspec

from penstock.config.cache_settings import KVRole
from penstock.config.settings import (
    CacheSettings,
    EngineConfig,
    MetricsSettings,
    ServeConfig,
)
from penstock.errors import StartupError
from penstock.net.runtime_dir import RuntimeDir
from penstock.process.machine import usable_cores
from penstock.supervisor.child import ChildSpec
from penstock.supervisor.executors import Executor, WorkerGroup, executor_of
from penstock.supervisor.gpus import devices_of_workers
from penstock.supervisor.numa import nodes_of_engine, with_nodes

ROLES: tuple[KVRole, ...] = get_args(KVRole)
"""What an engine core may be for, where several fetch KV of each other."""


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
