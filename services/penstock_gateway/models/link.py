"""A gateway's connection to the supervisor, for models that are loaded on demand."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from penstock.process import logs
from penstock.protocol.from_supervisor import FromSupervisor, Granted, ModelStates, Reclaimed
from penstock.protocol.to_supervisor import Introduce, ToSupervisor

if TYPE_CHECKING:
    from penstock_gateway.models.residence import Residence

log = logs.get(__name__)

AGAIN = 0.2
"""Seconds between two tries to reach the supervisor."""
LOOK = 0.25
"""Seconds between looks at models, and `LOOK_SOON` where requests wait for one."""
LOOK_SOON = 0.02
LONGEST_LINE = 1 << 20
"""Bytes of a message."""


class SupervisorLink:
    """path: of the supervisor's socket. Lives in one event loop, from `start` to `close`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._name = os.urandom(16).hex()
        self._residences: dict[str, Residence] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._decoder = msgspec.json.Decoder(FromSupervisor)

    def add(self, residence: Residence) -> None:
        """Adds a model's residence. Called before `start`."""
        self._residences[residence.model] = residence

    def tell(self, message: ToSupervisor) -> bool:
        """Sends it; False while there is no connection. The next one begins with what is held, and
        what is wanted is asked for anew."""
        if self._writer is None or self._writer.is_closing():
            return False
        self._writer.write(msgspec.json.encode(message) + b"\n")
        return True

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._look())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError):
                await self._serve()
            await asyncio.sleep(AGAIN)

    async def _serve(self) -> None:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=LONGEST_LINE)
        self._writer = writer
        try:
            held = [each for each in self._residences.values() if each.held]
            busy = [each.model for each in held if each.busy]
            self.tell(Introduce(self._name, [each.model for each in held], busy))
            for residence in self._residences.values():
                residence.connected()
            while line := await reader.readline():
                self._take(self._decoder.decode(line))
        except msgspec.DecodeError as error:
            log.error("the supervisor's message can't be read", reason=str(error))
        finally:
            self._writer = None
            writer.close()

    def _take(self, message: FromSupervisor) -> None:
        match message:
            case ModelStates():
                now = time.monotonic()
                for state in message.models:
                    if (residence := self._residences.get(state.model)) is not None:
                        residence.take_state(state, now)
            case Granted():
                if (residence := self._residences.get(message.model)) is not None:
                    residence.granted()
            case Reclaimed():
                if (residence := self._residences.get(message.model)) is not None:
                    residence.reclaimed()

    async def _look(self) -> None:
        while True:
            for residence in self._residences.values():
                residence.look()
            soon = any(each.waiting for each in self._residences.values())
            await asyncio.sleep(LOOK_SOON if soon else LOOK)
