"""The socket at which gateways ask for models."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock import logs
from penstock.protocol.from_supervisor import FromSupervisor, ModelState, ModelStates
from penstock.protocol.to_supervisor import ToSupervisor

log = logs.get(__name__)

LONGEST_LINE = 65_536
"""Bytes of a message to the supervisor."""
MOST_UNREAD = 1 << 20
"""Bytes that may wait for one who doesn't read; then the connection ends, and begins anew."""


class ModelsSocket:
    """path: in the private folder of the system.  heard: gets what holders say, by their number;
    None: the holder has gone.  states: what a new one is told first."""

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
            log.warning("a gateway doesn't read what models do", holder=holder)
            writer.transport.abort()
            return
        writer.write(msgspec.json.encode(message) + b"\n")

    def tell_all(self) -> None:
        """The states of all models, to everybody."""
        states = ModelStates(list(self._states()))
        for holder in list(self._writers):
            self.tell(holder, states)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        holder = next(self._numbers)
        self._writers[holder] = writer
        try:
            self.tell(holder, ModelStates(list(self._states())))
            with suppress(OSError, ValueError):
                while line := await reader.readline():
                    self._heard(holder, self._decoder.decode(line))
        except msgspec.DecodeError as error:
            log.error("a gateway's message can't be read", reason=str(error))
        finally:
            del self._writers[holder]
            writer.close()
            self._heard(holder, None)
