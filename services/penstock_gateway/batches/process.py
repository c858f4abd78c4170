"""The process that works through the batches of everybody, some at a time: a gateway without a
socket."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from contextlib import suppress
from functools import partial

from starlette.types import ASGIApp

from penstock.config.settings import ServeConfig
from penstock.errors import StartupError
from penstock.net import listener
from penstock.net.exposure import check_exposure
from penstock.process import logs
from penstock_gateway.adapters.loading import AdapterFolders
from penstock_gateway.app import create_app
from penstock_gateway.batches.background import BackgroundRunner
from penstock_gateway.batches.run import BatchRun, Lost
from penstock_gateway.keys.ring import Caller, KeyRing
from penstock_gateway.models.reach import reach_models
from penstock_gateway.receipts import Receipts
from penstock_gateway.service import LineCounts, Service
from penstock_gateway.storage.database import DatabaseDamaged
from penstock_gateway.storage.records import BatchWork
from penstock_gateway.storage.store import Store, new_id
from penstock_gateway.system.admin import serving

log = logs.get(__name__)

AT_ONCE = 8
"""Batches that are worked on together, so that a short one needn't wait for a long one's end. Those
that only wait don't count."""
MOST_HELD = 128
"""Batches that are held, those that only wait included."""
SWEEP_EVERY = 60.0
"""Seconds between looks for files whose time is over."""


class Runner:
    """app: answers lines.  ring: the API keys; None: there are none.  longest_line: bytes.
    receipts: see BatchRun."""

    def __init__(
        self,
        store: Store,
        app: ASGIApp,
        ring: KeyRing | None,
        *,
        longest_line: int,
        receipts: Receipts | None = None,
    ) -> None:
        self._store = store
        self._app = app
        self._ring = ring
        self._longest_line = longest_line
        self._receipts = receipts
        self.counts = LineCounts()
        self._name = new_id("runner")
        self._room = asyncio.Semaphore(store.settings.batch_concurrency)
        self._running: dict[asyncio.Task[None], BatchRun] = {}
        self._troubled = False

    async def run(self) -> None:
        """Runs batches until it is cancelled. Then what it holds is anybody's, as far as it has
        come."""
        sweeping = asyncio.create_task(self._sweep())
        try:
            await self._store.held.looks.keep_taking(self._try_to_take_one, self._is_full)
        finally:
            tasks = [sweeping, *self._running]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(DatabaseDamaged):
                await self._store.held.let_go(self._name)

    async def _try_to_take_one(self) -> bool:
        """Takes a batch as `_take_one` does; also False if the database doesn't answer: its disk is
        full, or it is restarting. Running batches continue."""
        try:
            taken = await self._take_one()
        except DatabaseDamaged:  # It has been logged.
            return False
        except Exception:
            if not self._troubled:
                log.error("can't look for queued batches; retrying", exception=True)
            self._troubled = True
            return False
        self._troubled = False
        return taken

    def _is_full(self) -> bool:
        at_work = sum(not run.stalled for run in self._running.values())
        return at_work >= AT_ONCE or len(self._running) >= MOST_HELD

    async def _take_one(self) -> bool:
        """False: there is nothing to take."""
        busy = {run.work.record.id: run.work.owner for run in self._running.values()}
        work = await self._store.held.claim(self._name, busy)
        if work is None:
            return False
        run = self._run_of(work)
        task = asyncio.create_task(_finish(run))
        self._running[task] = run
        task.add_done_callback(self._running.pop)
        return True

    def _run_of(self, work: BatchWork) -> BatchRun:
        return BatchRun(
            work,
            self._store,
            self._name,
            app=self._app,
            caller=lambda: self._caller_of(work),
            room=self._room,
            at_once=self._store.settings.batch_concurrency,
            longest_line=self._longest_line,
            counts=self.counts,
            receipts=self._receipts,
        )

    def _caller_of(self, work: BatchWork) -> Caller | None:
        return caller_of(self._ring, work.owner, work.key_digest, background=True)

    async def _sweep(self) -> None:
        """Removes what has expired, and what is left over from processes that died."""
        while True:
            try:
                contents = self._store.contents
                for file_id in await self._store.files.expired():
                    await asyncio.to_thread(contents.remove, file_id)
                if self._store.responses is not None:
                    await self._store.responses.forget_expired()
                if self._store.conversations is not None:
                    await self._store.conversations.forget_expired()
                await self._remove_abandoned()
            except DatabaseDamaged:
                pass
            except Exception:
                log.error("expired files can't be removed", exception=True)
            await asyncio.sleep(SWEEP_EVERY)

    async def _remove_abandoned(self) -> None:
        known = await self._store.files.ids()
        if not await asyncio.to_thread(self._store.mark.holds):
            log.error("--data-dir now belongs to another database; nothing in it is removed")
            return
        await asyncio.to_thread(self._store.contents.remove_abandoned, known)


async def _finish(run: BatchRun) -> None:
    batch = run.work.record.id
    try:
        await run.run()
    except* Lost:
        log.warning("another process has taken over the batch", batch=batch)
    except* Exception:
        # It stays claimed for a while, and is then taken up again.
        log.error("batch interrupted", batch=batch, exception=True)


def caller_of(
    ring: KeyRing | None, owner: str, key_digest: str, *, background: bool
) -> Caller | None:
    """The caller in whose name something is asked that an earlier request left. None: the key isn't
    known any more.

    ring: None: there are no keys.  background: it is served after what somebody waits for.
    """
    if ring is None:
        return Caller(None, tenant=owner, background=background)
    key = ring.known(bytes.fromhex(key_digest)) if key_digest else None
    return None if key is None else Caller(key, background=background)


def main(engine_endpoint: str, config: ServeConfig, models_socket: str | None = None) -> None:
    """Works until SIGTERM or SIGINT. models_socket: of the supervisor, where it starts and ends
    models.  Raises StartupError."""
    store = Store.of(config.storage)
    if store is None:
        raise StartupError("batches need --data-dir")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    gc.freeze()
    try:
        asyncio.run(_work(engine_endpoint, config, store, models_socket))
    finally:
        store.close()


async def _work(
    engine_endpoint: str, config: ServeConfig, store: Store, models_socket: str | None
) -> None:
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    engine = config.engine
    models = reach_models(
        engine_endpoint,
        config.gateway,
        name="batches",
        transport=engine.transport,
        folders=AdapterFolders(
            allowed=engine.lora.lora_allowed_folder, cache=engine.model.cache_dir
        ),
        models=config.models,
        socket=models_socket,
    )
    app = create_app(
        models.backends,
        config.gateway,
        gateways=config.gateways,
        media=engine.media,
        store=store,
    )
    service: Service = app.state.service
    admin = _admin_socket(config, service)
    await models.start()
    watching = asyncio.create_task(service.ring.watch()) if service.ring is not None else None
    runner = Runner(
        store,
        app,
        service.ring,
        longest_line=config.gateway.max_body_bytes,
        receipts=service.receipts,
    )
    service.lines = runner.counts
    running = [asyncio.create_task(runner.run())]
    if store.background is not None:
        responses = BackgroundRunner(
            store.background,
            app,
            partial(caller_of, service.ring, background=False),
            at_once=store.settings.background_concurrency,
        )
        running.append(asyncio.create_task(responses.run()))
    waiting = asyncio.create_task(stopped.wait())
    try:
        async with serving(service, admin):
            await asyncio.wait((*running, waiting), return_when=asyncio.FIRST_COMPLETED)
        for each in running:
            if each.done():
                each.result()
    finally:
        for task in (*running, waiting, watching):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await models.close()
        await service.leave()
    log.info("left")


def _admin_socket(config: ServeConfig, service: Service) -> socket.socket | None:
    """Opens the port for /metrics and /health/live, after those of gateways and gRPC's process;
    None: none is asked for. Raises StartupError where it would be open to everybody unasked."""
    port = config.gateway.admin_port
    if port is None:
        return None
    sock = listener.bind(config.gateway.host, port and port + config.doors)
    check_exposure(config.gateway, sock.getsockname()[0], has_keys=service.ring is not None)
    return sock
