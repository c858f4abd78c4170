"""Several engine cores on one machine: what each gets of it, and what its processes are told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.bench.machine import usable_cores
from penstock.config import EngineConfig, MetricsSettings, ServeConfig
from penstock.errors import StartupError
from penstock.supervisor.child import ChildSpec
from penstock.supervisor.runtime_dir import RuntimeDir


@dataclass(frozen=True)
class Replica:
    """One engine core and its worker. frontends: where the engine core takes front ends."""

    frontends: str
    engine: ChildSpec
    worker: ChildSpec


def make_replicas(
    config: ServeConfig, runtime: RuntimeDir, model_dir: Path, given: str | None, grace: float
) -> list[Replica]:
    """As many as the configuration says, each with a configuration file of its own.

    given: where engine cores are to listen for front ends, with commas; None: in the runtime
    folder.  grace: seconds that an engine core gets to leave.  Raises StartupError where `given`
    has another number of places.
    """
    count = config.data_parallel_size
    places = _places(runtime, count, given)
    return [
        _replica(runtime, number, count, config, model_dir, place, grace)
        for number, place in enumerate(places)
    ]


def _places(runtime: RuntimeDir, count: int, given: str | None) -> list[str]:
    if given is None:
        if count == 1:
            return [runtime.endpoint("frontend")]
        # No longer than that: there is a bound on the paths of sockets.
        return [runtime.endpoint(f"front{number}") for number in range(count)]
    places = given.split(",")
    if len(places) != count:
        raise StartupError(
            f"--frontend-endpoint has {len(places)} places, --data-parallel-size is {count}: "
            "each engine core needs one"
        )
    return places


def _replica(
    runtime: RuntimeDir,
    number: int,
    count: int,
    config: ServeConfig,
    model_dir: Path,
    frontends: str,
    grace: float,
) -> Replica:
    settings = msgspec.structs.replace(config, engine=share(config.engine, number, count))
    file = runtime.path / f"engine-{number}.json"
    file.write_bytes(msgspec.json.encode(settings))
    workers = runtime.endpoint("worker" if count == 1 else f"worker{number}")
    common = ("--config", str(file), *(("--index", str(number)) if count > 1 else ()))
    engine = ("engine", *common, "--model-dir", str(model_dir))
    endpoints = ("--frontend-endpoint", frontends, "--worker-endpoint", workers)
    worker = ("worker", *common, "--engine-endpoint", workers, "--rank", "0")
    name = "engine" if count == 1 else f"engine {number}"
    return Replica(
        frontends,
        ChildSpec(name, engine + endpoints, grace=grace),
        ChildSpec(f"worker {number}", worker),
    )


def share(engine: EngineConfig, number: int, count: int) -> EngineConfig:
    """The settings of one of `count` engine cores: its part of threads and memory, and places of
    its own. What was said of one engine core (`--threads`, `--num-kv-blocks`) holds for each."""
    if count == 1:
        return engine
    worker, cache, record = engine.worker, engine.cache, engine.record
    if worker.threads is None:
        cores = math.ceil(usable_cores())
        threads = max(1, cores // count + (number < cores % count))
        worker = msgspec.structs.replace(worker, threads=threads)
    cache = msgspec.structs.replace(
        cache,
        # Those that start after it find less free; together they keep to the share.
        kv_memory_fraction=cache.kv_memory_fraction / count,
        host_kv_gib=cache.host_kv_gib / count,
    )
    if record.record_dir is not None:
        folder = str(Path(record.record_dir) / f"engine-{number}")
        record = msgspec.structs.replace(record, record_dir=folder)
    return msgspec.structs.replace(
        engine,
        worker=worker,
        cache=cache,
        record=record,
        metrics=_own_ports(engine.metrics, number),
    )


def _own_ports(metrics: MetricsSettings, number: int) -> MetricsSettings:
    """The ports given are the first engine core's and its worker's; the others' follow them."""
    changed = {
        name: port + number
        for name in ("engine_metrics_port", "worker_metrics_port")
        if (port := getattr(metrics, name))  # 0 is any free one for each.
    }
    past = [port for port in changed.values() if port > 65_535]
    if past:
        raise StartupError(f"engine core {number} would have the metrics port {past[0]}")
    return msgspec.structs.replace(metrics, **changed)
