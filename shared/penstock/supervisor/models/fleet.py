"""All models of a server: carries out with processes what `Residents` decides."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from penstock.config.model_list import ModelEntry
from penstock.config.settings import ServeConfig
from penstock.errors import PenstockError, StartupError
from penstock.net.runtime_dir import RuntimeDir
from penstock.process import logs
from penstock.protocol.from_supervisor import (
    FromSupervisor,
    Granted,
    ModelState,
    ModelStates,
    Reclaimed,
)
from penstock.protocol.to_supervisor import (
    Busy,
    Idle,
    Introduce,
    Leave,
    Seen,
    ToSupervisor,
    Unload,
    Unwant,
    Want,
)
from penstock.supervisor.models.processes import ModelProcesses
from penstock.supervisor.models.residents import (
    Action,
    GrantModel,
    Mark,
    PrepareModel,
    ReclaimModel,
    Residents,
    StartModel,
    StopModel,
)
from penstock.supervisor.preparing import Stopped

log = logs.get(__name__)

LOOK_EVERY = 0.5
"""Seconds between looks at what time alone changes."""


class ModelFleet:
    """Lives in the supervisor's event loop. grace: seconds that an engine core gets to leave.
    prepared: gets the folder of each model that has been."""

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        config: ServeConfig,
        runtime: RuntimeDir,
        grace: float,
        prepared: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        settings = config.models
        self._prepared = prepared
        self._processes = {
            entry.name: ModelProcesses(entry, config, number, len(entries), runtime, grace)
            for number, entry in enumerate(entries)
        }
        self._residents = Residents(
            [(entry.name, entry.pinned) for entry in entries],
            limit=settings.models_memory_gib,
            idle=60 * settings.model_idle_minutes,
            turn=settings.model_turn_seconds,
            load_timeout=settings.model_load_timeout,
        )
        self.socket = ModelsSocket(
            runtime.path / "models.sock",
            self._heard,
            lambda: self._residents.states(time.monotonic()),
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._settled = asyncio.Event()
        self._stopping = False

    @property
    def frontends(self) -> str:
        """For --engine-endpoint: where each model's engine cores take front ends."""
        return ",".join(
            f"{name}={endpoint}"
            for name, processes in self._processes.items()
            for endpoint in processes.frontends()
        )

    async def settled(self) -> None:
        """Returns once every pinned model is ready, or has failed. Raises StartupError where there
        is no other model, and all have failed."""
        await self._settled.wait()
        failures = self._residents.failures()
        if len(failures) == len(self._processes):
            words = "; ".join(f"{model}: {reason}" for model, reason in failures.items())
            raise StartupError(f"no model can be served: {words}")

    async def run(self) -> None:
        """Starts and ends models until it is stopped."""
        sent: list[Mark] = []
        while not self._stopping:
            now = time.monotonic()
            for action in self._residents.decide(now):
                self._do(action)
            if (marks := self._residents.marks()) != sent:
                self._log_failures(set(marks).difference(sent))
                sent = marks
                self.socket.tell_all()
            if self._residents.settled():
                self._settled.set()
            self._news.clear()
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def stop(self) -> None:
        """Ends all models in order."""
        self._stopping = True
        self._news.set()
        self._residents.end(time.monotonic())
        self.socket.tell_all()
        for processes in self._processes.values():
            processes.stop_preparing()
        await asyncio.gather(*(processes.stop() for processes in self._processes.values()))
        for task in self._tasks.values():
            task.cancel()  # One that was about to start has no process to stop yet.
        await asyncio.gather(*self._tasks.values(), *self._ending, return_exceptions=True)
        await self.socket.close()

    def kill(self) -> None:
        """SIGKILL to all, now."""
        for processes in self._processes.values():
            processes.kill()

    def _heard(self, holder: int, message: ToSupervisor | None) -> None:
        residents, now = self._residents, time.monotonic()
        match message:
            case None:
                residents.lost(holder, now)
            case Introduce():
                for action in residents.back(holder, message.holding, message.busy, now):
                    self._do(action)
            case Unwant():
                residents.unwant(holder, message.model)
            case Want():
                residents.want(holder, message.model, now)
            case Busy():
                residents.work(holder, message.model, now, busy=True)
            case Idle():
                residents.work(holder, message.model, now, busy=False)
            case Leave():
                residents.leave(holder, message.model, now)
            case Seen():
                self._seen(message.model, now)
            case Unload():
                for action in residents.unload(message.model):
                    self._do(action)
        self._news.set()

    def _seen(self, model: str, now: float) -> None:
        processes = self._processes.get(model)
        if processes is not None and model in self._tasks:
            if not processes.was_ready:
                log.info("model ready", model=model)
            processes.seen_ready()
        self._residents.seen(model, now)

    def _do(self, action: Action) -> None:
        if self._stopping:
            return
        match action:
            case GrantModel():
                self.socket.tell(action.holder, Granted(action.model))
            case ReclaimModel():
                self.socket.tell(action.holder, Reclaimed(action.model))
            case PrepareModel():
                self._begin(action.model, self._prepare(action.model))
            case StartModel():
                log.info("model starts", model=action.model)
                self._begin(action.model, self._run(action.model))
            case StopModel():
                log.info("model ends", model=action.model)
                task = asyncio.create_task(self._processes[action.model].stop())
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    def _begin(self, model: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[model] = asyncio.create_task(work)

    async def _prepare(self, model: str) -> None:
        try:
            folder, gib = await self._processes[model].prepare()
        except Stopped:
            return
        except PenstockError as error:
            self._failed(model, str(error))
        except Exception as error:
            # Else requests for it would wait until their timeout.
            self._failed(model, f"it could not be prepared: {error!r}")
        else:
            self._prepared(folder)
            self._residents.prepared(model, gib)
        self._news.set()

    async def _run(self, model: str) -> None:
        processes = self._processes[model]
        try:
            if not await processes.is_as_prepared():
                log.info("model prepared again", model=model)
                self._prepared((await processes.prepare())[0])
            reason = await processes.run()
        except Stopped:
            reason = None
        except PenstockError as error:
            reason = str(error)
        except Exception as error:
            reason = f"its processes could not be run: {error!r}"
        if reason is None:
            self._residents.stopped(model, time.monotonic())
        else:
            self._failed(model, reason)
        self._news.set()

    def _failed(self, model: str, reason: str) -> None:
        self._residents.failed(model, reason, time.monotonic())

    def _log_failures(self, marks: set[Mark]) -> None:
        for state in self._residents.states(time.monotonic()):
            if state.presence == "failed" and any(model == state.model for model, *_ in marks):
                log.error("model failed", model=state.model, reason=state.reason)


LONGEST_LINE = 65_536
"""Bytes of a message to the supervisor."""
MOST_UNREAD = 1 << 20
"""Bytes that may wait for one who doesn't read; then the connection ends, and begins anew."""
MOST_NAMES = 1024
"""Most holders' names that are remembered."""


class ModelsSocket:
    """The socket at which gateways ask for models.

    path: in the private folder of the system.  heard: called with what holders say, and their
    number; None: its connection has ended. One that comes back has the same number.  states: what a
    holder is sent first.
    """

    def __init__(
        self,
        path: Path,
        heard: Callable[[int, ToSupervisor | None], None],
        states: Callable[[], Sequence[ModelState]],
    ) -> None:
        self.path = path
        self._heard = heard
        self._states = states
        self._numbers = itertools.count(1)
        self._known: dict[str, int] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._decoder = msgspec.json.Decoder(ToSupervisor)

    async def open(self) -> None:
        """Begins to listen."""
        self._server = await asyncio.start_unix_server(
            self._serve, str(self.path), limit=LONGEST_LINE
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers.values():
            writer.close()

    def tell(self, holder: int, message: FromSupervisor) -> None:
        """Sends a message to a holder; does nothing if it has gone meanwhile."""
        writer = self._writers.get(holder)
        if writer is None or writer.is_closing():
            return
        if writer.transport.get_write_buffer_size() > MOST_UNREAD:
            log.warning("a gateway doesn't read the models' states", holder=holder)
            writer.transport.abort()
            return
        writer.write(msgspec.json.encode(message) + b"\n")

    def tell_all(self) -> None:
        """The states of all models, to everybody."""
        states = ModelStates(list(self._states()))
        for holder in list(self._writers):
            self.tell(holder, states)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        holder: int | None = None
        try:
            with suppress(OSError, ValueError):
                first = self._decoder.decode(await reader.readline())
                if not isinstance(first, Introduce):
                    raise msgspec.DecodeError("it doesn't begin with an introduction")
                holder = self._number_of(first.name)
                if (before := self._writers.get(holder)) is not None:
                    before.close()
                self._writers[holder] = writer
                self.tell(holder, ModelStates(list(self._states())))
                self._heard(holder, first)
                while line := await reader.readline():
                    self._heard(holder, self._decoder.decode(line))
        except msgspec.DecodeError as error:
            log.error("a gateway's message can't be read", reason=str(error))
        finally:
            writer.close()
            if holder is not None and self._writers.get(holder) is writer:
                del self._writers[holder]
                self._heard(holder, None)

    def _number_of(self, name: str) -> int:
        if name not in self._known and len(self._known) >= MOST_NAMES:
            self._known = {
                each: number for each, number in self._known.items() if number in self._writers
            }
        return self._known.setdefault(name, next(self._numbers))
