"""The process that holds an engine core's ranks on a Ray cluster: `penstock ray-workers`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.config.settings import EngineConfig, ServeConfig
from penstock.errors import StartupError
from penstock.process import logs
from penstock_ray.actor import Task
from penstock_ray.reach import (
    Unavailable,
    check_reach,
    dialled_endpoint,
    worker_transport,
)

if TYPE_CHECKING:
    from penstock_ray.placement import Bundle, Reserved
    from penstock_ray.rank import Rank

log = logs.get(__name__)

PATIENCE = 10.0
"""Seconds in which a cluster must take a connection."""

NO_GPU = (("CUDA_VISIBLE_DEVICES", ""),)
"""The environment of a rank that has reserved no GPU: what it would find, others have reserved."""


@dataclass(frozen=True)
class Wanted:
    """engine: its settings.  endpoint: where it listens for workers.  model_dir: its prepared
    folder.  was_ready: whether the system has been ready."""

    engine: EngineConfig
    endpoint: str
    model_dir: str
    was_ready: Callable[[], bool]


def main(wanted: Wanted) -> None:
    """Returns after SIGTERM or SIGINT, when all ranks are gone.

    Raises StartupError for what can't be; where the cluster can't be used, Unavailable, which the
    supervisor answers by starting this process again, if the system was ready before.
    """
    try:
        asyncio.run(_hold(wanted))
    except Unavailable as error:
        if wanted.was_ready():
            raise
        raise StartupError(str(error)) from error


async def _hold(wanted: Wanted) -> None:
    _connect()
    import ray

    try:
        stop = asyncio.Event()
        # After Ray, which takes SIGTERM for itself.
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        serving = asyncio.create_task(_serve(wanted))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not serving.done():
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        else:
            serving.result()
    finally:
        ray.shutdown()


def _connect() -> None:
    """Raises StartupError without Ray, and Unavailable without a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS") or "auto"
    if address == "local" or "://" in address:
        raise StartupError(
            f"RAY_ADDRESS is {address}: expected HOST:PORT of a cluster that this machine is a node"
            " of, or auto"
        )
    _knock(address)
    make_record = logging.getLogRecordFactory()
    try:
        import ray
    except ImportError as error:
        words = f"--executor ray needs Ray ({error}): pip install 'penstock-llm[ray]'"
        raise StartupError(words) from error
    # Ray gives each record a field, which our lines would show.
    logging.setLogRecordFactory(make_record)
    try:
        ray.init(address=address, configure_logging=False, log_to_driver=True)
    except Exception as error:  # Of many kinds, which Ray doesn't list.
        raise Unavailable(
            f"no Ray cluster answers at {address} (RAY_ADDRESS; `ray start --head` begins one):"
            f" {error}"
        ) from error


def _knock(address: str) -> None:
    """Raises Unavailable where nothing listens at HOST:PORT: Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise Unavailable(f"no Ray cluster answers at {address} (RAY_ADDRESS): {error}") from None


async def _serve(wanted: Wanted) -> None:
    """Runs workers until it is cancelled. Raises StartupError for a rank that can't go on."""
    import ray
    from penstock_ray.placement import Reserved, bundle_of

    bundle = bundle_of(wanted.engine.worker, ray.cluster_resources())
    reserved = Reserved(bundle, wanted.engine.parallel.ranks)
    try:
        await reserved.wait()
        log.info("reserved", ranks=wanted.engine.parallel.ranks, each=bundle.resources)
        await _keep(_ranks(wanted, bundle, reserved, ray.util.get_node_ip_address()))
    finally:
        reserved.release()


def _ranks(wanted: Wanted, bundle: Bundle, reserved: Reserved, here: str) -> list[Rank]:
    from penstock_ray.rank import Rank

    endpoint = dialled_endpoint(wanted.endpoint, here)

    def check(node: str, rank: int) -> None:
        check_reach(endpoint, node, here, rank)

    tasks = [_task(wanted, bundle, endpoint, rank) for rank in range(wanted.engine.parallel.ranks)]
    return [Rank(task, reserved, check, wanted.was_ready) for task in tasks]


def _task(wanted: Wanted, bundle: Bundle, endpoint: str, rank: int) -> Task:
    engine = wanted.engine
    transport = worker_transport(engine.transport)
    config = ServeConfig(engine=msgspec.structs.replace(engine, transport=transport))
    cache = engine.model.cache_dir
    prepare = ("prepare", engine.model.model, *(("--cache-dir", cache) if cache else ()))
    return Task(
        rank,
        endpoint,
        msgspec.json.encode(config),
        wanted.model_dir,
        prepare,
        environment=() if bundle.gpus else NO_GPU,
    )


async def _keep(ranks: list[Rank]) -> None:
    """All of them, until one can't go on, or this is cancelled."""
    runs = [asyncio.create_task(rank.run()) for rank in ranks]
    try:
        done, _ = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
        for run in done:
            if (reason := run.result()) is not None:
                raise StartupError(reason)
    finally:
        await asyncio.gather(*(rank.stop() for rank in ranks))
        await asyncio.gather(*runs, return_exceptions=True)
