"""What each engine core of a machine gets of it: threads, memory, ports. Its ranks share that."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from penstock.config.settings import EngineConfig, MetricsSettings
from penstock.errors import StartupError
from penstock.process.machine import usable_cores


def share(engine: EngineConfig, number: int, count: int) -> EngineConfig:
    """The settings of engine core `number` of `count`: its part of threads and memory, and places
    of its own.  All its ranks are told the same, so threads are a rank's, and so is memory.  What
    was said of one (`--threads`, `--num-kv-blocks`) holds for each."""
    ranks = engine.parallel.ranks
    if count * ranks == 1:
        return engine
    worker, cache, record = engine.worker, engine.cache, engine.record
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
    worker adds its rank to what it is told."""
    changed, last = {}, 0
    for name, each in (("engine_metrics_port", 1), ("worker_metrics_port", ranks)):
        if port := getattr(metrics, name):  # 0 is any free one for each.
            changed[name] = port + number * each
            last = max(last, changed[name] + each - 1)
    if last > 65_535:
        raise StartupError(f"engine core {number} would have the metrics port {last}")
    return msgspec.structs.replace(metrics, **changed)
