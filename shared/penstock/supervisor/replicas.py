"""Several engine cores on one machine, each with its workers: what its processes are told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.config.settings import CacheSettings, ServeConfig
from penstock.net.runtime_dir import RuntimeDir
from penstock.supervisor.child import ChildSpec
from penstock.supervisor.executors import (
    Executor,
    WorkerGroup,
    executor_of,
    split_places,
    worker_endpoints,
)
from penstock.supervisor.kv_roles import kv_caches
from penstock.supervisor.shares import share


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
