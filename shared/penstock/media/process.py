"""A front end's handle on one process that prepares media."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess

import msgspec

from penstock.media.wire import MAX_FRAME, Answer, Prepare, ProcessBounds
from penstock.process.frames import HEADER
from penstock.process.isolated import Crashed, IsolatedProcess

LARGE = 1 << 20
"""Bytes of an item from which on a thread receives it."""
START_TIME = 30.0
"""Seconds that a process may take to start."""
PATIENCE = 4
"""Times its processor time that an item may take by the clock: a busy machine is no bomb."""

_ANSWER = msgspec.msgpack.Decoder(Answer)


class MediaProcess(IsolatedProcess):
    """Works in one event loop."""

    def __init__(self, bounds: ProcessBounds) -> None:
        super().__init__(
            "penstock.media.child",
            ("numpy", "PIL", "soundfile", "_cffi_backend", "cffi", "pycparser", "soxr", "av"),
            msgspec.json.encode(bounds),
            # What it writes there are words of a decoder about a stranger's bytes.
            stderr=subprocess.DEVNULL,
            environment=_environment(),
        )
        self._bounds = bounds
        self._answered = False
        self._socket.setblocking(False)

    async def ask(self, task: Prepare) -> Answer:
        """Prepares an item. Raises Stalled, Frozen, Crashed or Died."""
        payload = msgspec.msgpack.encode(task)
        wall = PATIENCE * self._bounds.cpu + (0.0 if self._answered else START_TIME)
        try:
            async with self._bounded(wall):
                await self._send(payload)
                answer = await self._answer()
        except msgspec.DecodeError:
            raise Crashed from None
        except (OSError, EOFError):
            raise await asyncio.to_thread(self._reason) from None
        self._answered = True
        return answer

    async def _answer(self) -> Answer:
        (size,) = HEADER.unpack(await self._receive(HEADER.size))
        if size > MAX_FRAME:
            raise Crashed
        answer = _ANSWER.decode(await self._receive(size))
        if not 0 <= answer.follows <= MAX_FRAME:
            raise Crashed
        if answer.follows < LARGE:
            data = bytes(await self._receive(answer.follows))
        else:
            # Megabytes are neither copied nor filled with zeros by who holds the interpreter.
            self._socket.setblocking(True)
            data = await asyncio.to_thread(self._receive_all, answer.follows)
            self._socket.setblocking(False)
        return msgspec.structs.replace(answer, data=data, follows=0)

    def _receive_all(self, size: int) -> bytes:
        """Blocks; ends when the process does."""
        parts: list[bytes] = []
        while size:
            part = self._socket.recv(size, socket.MSG_WAITALL)
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _environment() -> dict[str, str]:
    """None of ours, which may hold keys. One thread for NumPy: others would take address space."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
