"""The running system: engine cores, their workers, gateways; from the first process to the last."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.config.model_list import ModelEntry, ModelsFile
from penstock.config.plugins import check_plugins
from penstock.config.settings import ServeConfig
from penstock.errors import PenstockError, StartupError
from penstock.net import listener as http
from penstock.net.exposure import check_exposure, check_limits, configured_keys
from penstock.net.listener import with_free_port
from penstock.net.runtime_dir import RuntimeDir
from penstock.net.tls import client_context, server_context
from penstock.process import logs
from penstock.process.start_phases import START, StartPhase
from penstock.supervisor.ahead import ForkedAhead
from penstock.supervisor.child import Child, ChildSpec
from penstock.supervisor.data_lock import DataLock
from penstock.supervisor.fork_server import ForkServer, kept_child
from penstock.supervisor.front import FrontSpecs, grpc_ready
from penstock.supervisor.models.fleet import ModelFleet
from penstock.supervisor.preparing import (
    Preparation,
    Stopped,
    with_draft_folder,
    with_kept_template,
)
from penstock.supervisor.replicas import EngineAddresses, make_replicas
from penstock.supervisor.report import StartupReport
from penstock.supervisor.restarts import RestartPolicy, RestartSettings
from penstock.supervisor.rolling import ROLL, Rolling
from penstock.supervisor.waiting import engine_ready, file_there, http_ready

log = logs.get(__name__)

FORKED = RestartSettings(max_delay=1.0)
"""How gateways are started again: a fork costs little, however often it dies."""
SHUTDOWN_MARGIN = 2.0
"""Seconds that a gateway or engine core gets beyond the time that its open requests get."""


@dataclass(frozen=True)
class SystemOptions:
    """What `penstock serve` is given in addition to the configuration.

    http: whether there are gateways.  endpoints: where engine cores listen.  report: the pipe to
    the program that started us.
    announce: called once, when ready, with the base URL (empty without http) and the model folder;
    None of several models.  models: the list of several; empty: the one that is configured.
    ahead: processes that wait for what is started here.
    """

    announce: Callable[[str, Path | None], None]
    http: bool = True
    models: tuple[ModelEntry, ...] = ()
    endpoints: EngineAddresses = field(default_factory=EngineAddresses)
    report: StartupReport | None = None
    ahead: ForkedAhead = field(default_factory=ForkedAhead)


@dataclass
class System:
    """Runs the processes of one machine; `run` is its whole life."""

    config: ServeConfig
    options: SystemOptions
    was_ready: bool = False
    interrupted: bool = False
    """Whether Ctrl-C came before it was ready."""
    _listener: socket.socket | None = None
    _data: DataLock = field(default_factory=DataLock)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _preparation: Preparation | None = None
    _forks: ForkServer | None = None
    _front: list[Child] = field(default_factory=list)
    _engines: list[Child] = field(default_factory=list)
    _workers: list[Child] = field(default_factory=list)
    _batches: list[Child] = field(default_factory=list)
    _grpc: list[Child] = field(default_factory=list)
    _models: ModelFleet | None = None
    """The models, where there are several."""
    _rolling: Rolling = field(default_factory=Rolling)

    async def run(self) -> None:
        """Returns after an orderly stop. Raises StartupError when the system can't go on."""
        START.report_to(None)
        START.passed("imports")
        self._listen_to_signals()
        if self.options.http:
            self._listener = http.bind(self.config.gateway.host, self.config.gateway.port)
            self._check_doors(self._listener.getsockname()[0])
            self.config = with_free_port(self.config)
            self._data = await DataLock.take(self.config.storage.data_dir)
        runtime = RuntimeDir.create()
        try:
            if self.options.models:
                await self._serve_several(runtime, self.options.models)
            else:
                model_dir = await self._prepare(runtime)
                START.passed("model prepared")
                await self._serve(runtime, model_dir)
        except Stopped:
            pass
        finally:
            self.options.ahead.close()
            await self._stop_children()
            runtime.remove()
            self._data.release()

    def _check_doors(self, address: str) -> None:
        """Raises StartupError for what the gateways would refuse to start with: early, and once."""
        gateway = self.config.gateway
        keys = configured_keys(gateway)
        check_exposure(gateway, address, has_keys=keys is not None)
        check_limits(gateway, self.config.doors, keys or ())
        server_context(gateway)
        check_plugins(gateway.plugins)

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal, signum)
        loop.add_signal_handler(ROLL, self._on_roll)
        if self.options.report is not None:
            self.options.report.watch(lambda: self._ask_to_stop("the starter is gone"))

    def _on_signal(self, signum: int) -> None:
        if self._stop.is_set():
            log.warning("stopping at once", signal=signal.Signals(signum).name)
            for child in (*self._sources, *self._fronts, *self._engines, *self._workers):
                child.kill()
            if self._models is not None:
                self._models.kill()
        elif signum == signal.SIGINT and not self.was_ready:
            self.interrupted = True
        self._ask_to_stop(signal.Signals(signum).name)

    def _on_roll(self) -> None:
        if self._listener is None or not self.was_ready or self._stop.is_set():
            log.warning("no gateways to restart", signal=ROLL.name)
        else:
            tls = client_context(self.config.gateway)
            address = http.reachable_address(self._listener)
            self._rolling.begin(self._front, *address, tls, self._forks)

    def _ask_to_stop(self, why: str) -> None:
        if not self._stop.is_set():
            log.info("stopping", why=why)
            self._stop.set()
        if self._preparation is not None:
            self._preparation.stop()

    async def _prepare(self, runtime: RuntimeDir) -> Path:
        """The model's prepared folder. From here on, the configuration names that of a draft
        model."""
        preparation = Preparation(runtime.path / "prepare.failure", self.config.log)
        self._preparation = preparation
        if self._stop.is_set():
            preparation.stop()
        folder = await preparation.folder(self.config.engine.model)
        engine = with_kept_template(await with_draft_folder(self.config.engine, preparation))
        self.config = msgspec.structs.replace(self.config, engine=engine)
        return folder

    async def _serve(self, runtime: RuntimeDir, model_dir: Path) -> None:
        replicas = make_replicas(
            self.config, runtime, model_dir, self.options.endpoints, self._drain_grace
        )
        frontends = ",".join(replica.frontends for replica in replicas)
        self._workers = [
            self._child(runtime, spec) for replica in replicas for spec in replica.workers
        ]
        self._engines = [self._child(runtime, replica.engine) for replica in replicas]
        self._make_front(runtime, ("--engine-endpoint", frontends), model_dir)
        await self._watch(frontends, model_dir, runtime)

    async def _serve_several(self, runtime: RuntimeDir, entries: tuple[ModelEntry, ...]) -> None:
        models = ModelFleet(entries, self.config, runtime, self._drain_grace, self._read_ahead)
        self._models = models
        await models.socket.open()
        listed = runtime.write("models.json", msgspec.json.encode(ModelsFile(models=entries)))
        settings = msgspec.structs.replace(self.config.models, models=str(listed))
        self.config = msgspec.structs.replace(self.config, models=settings)
        arguments = ("--engine-endpoint", models.frontends)
        self._make_front(runtime, (*arguments, "--models-socket", str(models.socket.path)))
        await self._watch(models.frontends, None, runtime)

    def _make_front(
        self, runtime: RuntimeDir, engines: tuple[str, ...], model_dir: Path | None = None
    ) -> None:
        """engines: the arguments that say how they are reached.  model_dir: of the only model."""
        if self._listener is None:
            return
        # From here on connections wait instead of being refused, also while a gateway is started
        # again.
        self._listener.listen(http.BACKLOG)
        fd = self._listener.fileno()
        grace, held = self._drain_grace, self._data.inherited
        specs = FrontSpecs(self.config, runtime, engines, fd, grace, held)
        with suppress(OSError):  # Then gateways are executed.
            failure, ahead = runtime.path / "fork-server.failure", self.options.ahead
            listed = runtime.write("model-dirs", b"")
            self._forks = ForkServer(
                lambda fd: kept_child(specs.fork_server(fd, listed), failure, ahead), listed
            )
            if model_dir is not None:
                self._read_ahead(model_dir)
        self._front = [self._child(runtime, spec, self._forks) for spec in specs.gateways()]
        self._batches = [self._child(runtime, spec) for spec in specs.batches()]
        self._grpc = [self._child(runtime, spec) for spec in specs.grpc()]

    def _read_ahead(self, model_dir: Path) -> None:
        if self._forks is not None:
            self._forks.read(model_dir)

    @property
    def _fronts(self) -> tuple[Child, ...]:
        """All that dial engine cores."""
        return (*self._batches, *self._grpc, *self._front)

    @property
    def _sources(self) -> tuple[Child, ...]:
        """What gateways are forks of."""
        return () if self._forks is None else (self._forks.child,)

    @property
    def _drain_grace(self) -> float:
        return self.config.gateway.shutdown_timeout + SHUTDOWN_MARGIN

    def _child(
        self, runtime: RuntimeDir, spec: ChildSpec, forks: ForkServer | None = None
    ) -> Child:
        return Child(
            spec,
            runtime.path / f"{spec.name.replace(' ', '-')}.failure",
            system_was_ready=lambda: self.was_ready,
            policy=RestartPolicy(None if forks is None else FORKED),
            ahead=self.options.ahead,
            forks=forks,
        )

    async def _watch(self, frontends: str, model_dir: Path | None, runtime: RuntimeDir) -> None:
        """Runs the children until a signal comes. Raises StartupError when one can't go on."""
        children = (*self._workers, *self._engines, *self._fronts)
        # Without HTTP, or where forks can't be adopted, there is nothing to keep running.
        forks = asyncio.create_task(asyncio.sleep(0) if self._forks is None else self._forks.run())
        runs = [asyncio.create_task(child.run()) for child in children]
        ready = asyncio.create_task(self._announce(frontends, model_dir, runtime))
        stop = asyncio.create_task(self._stop.wait())
        if self._models is not None:
            runs.append(asyncio.create_task(self._models.run()))
        try:
            await _first_of(stop, *runs, background=ready)
            for run in runs:
                if run.done() and (reason := run.result()) is not None:
                    raise StartupError(reason)
        finally:
            ready.cancel()
            stop.cancel()
            await self._rolling.cancel()
            await asyncio.gather(ready, stop, return_exceptions=True)
            await self._stop_children()
            await asyncio.gather(*runs, return_exceptions=True)
            forks.cancel()
            await asyncio.gather(forks, return_exceptions=True)

    async def _announce(self, frontends: str, model_dir: Path | None, runtime: RuntimeDir) -> None:
        """When the system is ready, reports it to the log, the report pipe and the callback."""
        begun = time.monotonic()
        url = ""
        if self._models is not None:
            await self._models.settled()
        if self._listener is not None:
            host, port = http.reachable_address(self._listener)
            tls = client_context(self.config.gateway)
            url = http.url(host, port, tls=tls is not None)
            await http_ready(host, port, tls)
            if self._grpc:
                await file_there(grpc_ready(runtime))
        else:
            await engine_ready(frontends, self.config.engine.transport)
        self.was_ready = True
        self.options.ahead.close()  # Those that weren't needed.
        (runtime.path / "ready").touch()
        log.info("ready", url=url, seconds=time.monotonic() - begun)
        phases = self._start_phases()
        log.info(
            "time until ready",
            **{name.replace(" ", "_"): ", ".join(map(str, each)) for name, each in phases.items()},
        )
        if self.options.report is not None:
            self.options.report.send_ready(start=phases)
        self.options.announce(url, model_dir)

    def _start_phases(self) -> dict[str, list[StartPhase]]:
        """What each process was at until the system was ready, by its name; without those that
        haven't said so."""
        START.passed("processes")
        START.done()
        children = (*self._workers, *self._engines, *self._sources, *self._fronts)
        said = {child.spec.name: child.start_phases() for child in children}
        return {"supervisor": START.found, **{name: each for name, each in said.items() if each}}

    async def _stop_children(self) -> None:
        """Gateways and the engine core drain together: neither takes new work, both finish what is
        open.  The workers, who do it, come after them.

        Our own hold on the socket goes before: with it, new connections would wait for gateways
        that no longer take them, where they can be refused.
        """
        if self._listener is not None:
            self._listener.close()
        forks = () if self._forks is None else (self._forks.stop(),)
        several = () if self._models is None else (self._models.stop(),)
        front = (*self._fronts, *self._engines)
        await asyncio.gather(*(child.stop() for child in front), *forks, *several)
        await asyncio.gather(*(child.stop() for child in self._workers))


async def _first_of(*tasks: asyncio.Task[Any], background: asyncio.Task[Any]) -> None:
    """Returns when one of `tasks` is done; the background task may end before, but not fail."""
    pending: set[asyncio.Task[Any]] = {*tasks, background}
    while not any(task.done() for task in tasks):
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if background.done():
            pending.discard(background)
            background.result()


def run_system(config: ServeConfig, options: SystemOptions) -> bool:
    """Serves until it is asked to stop. False: Ctrl-C came before it was ready. Raises
    StartupError; the report pipe gets that too."""

    async def main() -> bool:
        system = System(config, options)
        await system.run()
        return not system.interrupted

    try:
        return asyncio.run(main())
    except Exception as error:
        if options.report is not None:
            known = isinstance(error, PenstockError)
            options.report.send_error(str(error) if known else f"{type(error).__name__}: {error}")
        raise
