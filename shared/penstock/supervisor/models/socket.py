"""The socket at which gateways ask for models."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.process import logs
from penstock.protocol.from_supervisor import FromSupervisor, ModelState, ModelStates
from penstock.protocol.to_supervisor import Introduce, ToSupervisor

log = logs.get(__name__)

LONGEST_LINE = 65_536
"""Bytes of a message to the supervisor."""
MOST_UNREAD = 1 << 20
"""Bytes that may wait for one who doesn't read; then the connection ends, and begins anew."""
MOST_NAMES = 1024
"""Most holders' names that are remembered."""


class ModelsSocket:
    """path: in the private folder of the system.  heard: gets what holders say, by their number;
    None: its connection has ended. One that comes back has the same number.  states: what one is
    told first."""

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
        """Whoever has gone meanwhile hears nothing."""
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
