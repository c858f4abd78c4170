"""A front end's handle on one renderer process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.frames import HEADER
from penstock.text.render.wire import MAX_FRAME, Bounds, Fill, Filled

MAX_TEMPLATES = 16
"""That a process knows at once."""

START_TIME = 20.0
"""Seconds."""

_PROGRAM = (
    "import sys; n = int(sys.argv[3]); sys.path[:0] = sys.argv[4:4 + n]; "
    "from penstock.text.render.child import run; run()"
)
_PACKAGES = ("penstock", "jinja2", "markupsafe", "msgspec", "setproctitle")
_CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL}


class Died(Exception):
    """The process is gone, for a reason that isn't the template's."""


class Stalled(Exception):
    """The template took more time than it may."""


class Crashed(Exception):
    """The template brought the process down."""


class RenderProcess:
    """One exchange at a time; after an exception it must be closed."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._known: set[int] = set()
        self._answered = False
        ours, theirs = socket.socketpair()
        paths = _import_paths()
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid())]
        command += [msgspec.json.encode(bounds).decode(), str(len(paths)), *paths]
        with theirs:
            # What it writes on stderr is a fault of ours, and should be seen.
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL
            )
        self._socket = ours

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    @property
    def wall(self) -> float:
        """Seconds that an exchange may take by the clock: three times its CPU time, so that a busy
        machine doesn't pass for a stalled template; the first waits for the process to start."""
        return 3 * self._bounds.cpu + (0.0 if self._answered else START_TIME)

    def ask(self, template: int, source: str, fill: _Variables) -> Filled:
        """Fills a template; blocks. Raises InvalidRequest, Stalled, Crashed or Died."""
        frame = self._frame(template, source, fill)
        deadline = time.monotonic() + self.wall
        try:
            self._timeout(deadline)
            self._socket.sendall(frame)
            (size,) = HEADER.unpack(self._receive(HEADER.size, deadline))
            answer = self._receive(size, deadline)
        except TimeoutError:
            raise Stalled from None
        except (OSError, EOFError):
            raise self._reason() from None
        self._answered = True
        return _ANSWER.decode(answer)

    async def ask_async(self, template: int, source: str, fill: _Variables) -> Filled:
        """The same in an event loop."""
        frame = self._frame(template, source, fill)
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        try:
            async with asyncio.timeout(self.wall):
                await loop.sock_sendall(self._socket, frame)
                (size,) = HEADER.unpack(await self._receive_async(loop, HEADER.size))
                answer = await self._receive_async(loop, size)
        except TimeoutError:
            raise Stalled from None
        except (OSError, EOFError):
            raise self._reason() from None
        self._answered = True
        return _ANSWER.decode(answer)

    def close(self) -> None:
        """Ends the process. Idempotent."""
        self._socket.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """Lets go of it without ending it: in a fork, it is the other's."""
        self._socket.close()
        self._process.returncode = 0

    def _frame(self, template: int, source: str, fill: _Variables) -> bytes:
        known = template in self._known
        forget = not known and len(self._known) >= MAX_TEMPLATES
        variables, max_length = fill
        message = Fill(template, variables, max_length, None if known else source, forget)
        try:
            payload = msgspec.msgpack.encode(message)
        except UnicodeEncodeError:
            raise InvalidRequest(
                "the messages are not valid Unicode: they hold lone surrogates", param="messages"
            ) from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequest(
                f"the messages hold what a chat template can't be given: {error}", param="messages"
            ) from None
        if len(payload) > MAX_FRAME:
            raise InvalidRequest(
                f"the conversation has {len(payload)} bytes; at most {MAX_FRAME} are accepted",
                param="messages",
            )
        if forget:
            self._known.clear()
        self._known.add(template)
        return HEADER.pack(len(payload)) + payload

    def _timeout(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _receive(self, size: int, deadline: float) -> bytearray:
        buffer = bytearray(size)
        view, at = memoryview(buffer), 0
        while at < size:
            self._timeout(deadline)
            got = self._socket.recv_into(view[at:])
            if not got:
                raise EOFError
            at += got
        return buffer

    async def _receive_async(self, loop: asyncio.AbstractEventLoop, size: int) -> bytearray:
        buffer = bytearray(size)
        view, at = memoryview(buffer), 0
        while at < size:
            got = await loop.sock_recv_into(self._socket, view[at:])
            if not got:
                raise EOFError
            at += got
        return buffer

    def _reason(self) -> Exception:
        """Why there is no answer."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return Died("it closed its socket")
        if code == -signal.SIGPROF:
            return Stalled()
        return Crashed() if code in _CRASHES else Died(f"exit code {code}")


_Variables = tuple[dict[str, Any], int]
_ANSWER = msgspec.msgpack.Decoder(Filled)


def _import_paths() -> list[str]:
    """Where this process has the child's few packages from: it skips `site`, to start fast."""
    specs = [importlib.util.find_spec(name) for name in _PACKAGES]
    origins = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    return list(dict.fromkeys(str(Path(origin).parent.parent) for origin in origins))
