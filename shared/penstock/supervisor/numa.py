"""Which NUMA nodes the ranks of a system get: what `--numa` comes to on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.config.settings import ServeConfig, WorkerSettings
from penstock.errors import StartupError
from penstock.model.sharing import one_rank_only
from penstock.prepare import load_manifest
from penstock.process import logs
from penstock.process.machine import usable_cores
from penstock.process.numa import (
    AUTO,
    OFF,
    NodePlacement,
    RankNodes,
    one_rank_per_node,
    threads_on,
    usable_nodes,
    written,
)

log = logs.get(__name__)


def with_nodes(config: ServeConfig, model_dir: Path, on_gpus: Callable[[], bool]) -> ServeConfig:
    """The configuration with the nodes of all ranks of all engine cores in `numa`, the ranks and
    the threads that this means; `off` where it changes nothing.

    on_gpus: whether workers would compute on GPUs.  Raises StartupError for nodes of another number
    of ranks than the settings ask for.
    """
    worker = config.engine.worker
    if worker.numa == OFF:
        return config
    asked = config.engine.parallel.ranks * config.data_parallel_size
    if worker.numa != AUTO:
        if config.executor != "local":
            raise StartupError(f"numa names nodes here, and executor is {config.executor}")
        ranks = worker.rank_nodes(None if asked == 1 else asked)
        return _with(config, ranks, threads_on(ranks, usable_nodes(), usable_cores()))
    worker.check_numa_alone()
    elsewhere = _computed_elsewhere(config, on_gpus)
    found = None if elsewhere else placement(config, model_dir)
    if found is None:
        log.info("numa auto changes nothing", reason=elsewhere or "fewer than two usable nodes")
        return _with(config, None, None)
    fields = {"ranks": written(found.ranks), "threads": found.threads}
    if found.why:
        log.warning("not one rank for each NUMA node", reason=found.why, **fields)
    else:
        log.info("one rank for each NUMA node", **fields)
    return _with(config, found.ranks, found.threads)


def placement(config: ServeConfig, model_dir: Path) -> NodePlacement | None:
    """What `auto` means for a model on this machine's processors; None: there are fewer than two
    nodes."""
    usable = usable_nodes()
    if len(usable) < 2:
        return None
    settings, prepared = config.engine.model, load_manifest(model_dir)
    asked = settings.runner == "pooling" or settings.convert != "auto"
    pooled = settings.runner != "generate" and (asked or prepared.pooling is not None)
    return one_rank_per_node(
        usable,
        usable_cores(),
        config.engine.parallel.ranks * config.data_parallel_size,
        lambda ranks: one_rank_only(prepared, ranks, pooled=pooled),
    )


def _computed_elsewhere(config: ServeConfig, on_gpus: Callable[[], bool]) -> str:
    if config.executor != "local":
        return f"executor is {config.executor}"
    return "workers compute on GPUs" if on_gpus() else ""


def _with(config: ServeConfig, ranks: RankNodes | None, threads: int | None) -> ServeConfig:
    engine = config.engine
    worker = msgspec.structs.replace(engine.worker, numa=OFF if ranks is None else written(ranks))
    if threads is not None:
        # What several models have shared out is of the whole machine.
        least = min(threads, engine.worker.threads or threads)
        worker = msgspec.structs.replace(worker, threads=least)
    parallel = engine.parallel
    if ranks is not None and parallel.ranks * config.data_parallel_size == 1:
        parallel = msgspec.structs.replace(parallel, tensor_parallel_size=len(ranks))
    engine = msgspec.structs.replace(engine, worker=worker, parallel=parallel)
    return msgspec.structs.replace(config, engine=engine)


def nodes_of_engine(worker: WorkerSettings, number: int, ranks: int) -> WorkerSettings:
    """The settings of engine core `number`, which names the nodes of its own ranks."""
    if worker.numa == OFF:
        return worker
    own = worker.rank_nodes(None)[number * ranks : (number + 1) * ranks]
    return msgspec.structs.replace(worker, numa=written(own))
