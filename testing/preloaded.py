"""Penstock's processes for tests that aren't about starting them: forked, everything imported.

A process that is executed imports its modules first: two seconds of a processor for torch, one for
a gateway. `Preloaded` is a process that has imported all of them; within `in_use`, what would
execute `python -m penstock ...`, or a test's `python -c ...`, asks it for a fork instead, and so do
the processes that are begun so. Each is a process like any other: a child of who started it, with
its own pid, group, session, files, signals and environment. Where something is asked for that a
fork doesn't have, the program is executed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import setproctitle

from testing.forked import Wanted, become
from testing.processes import MODEL

ROOT = Path(__file__).parents[1]
GPUS = Path("/proc/driver/nvidia")
"""A folder that exists where there are GPUs: a fork could have what its parent knows of them."""

VARYING = frozenset(
    {
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "OTEL_BSP_SCHEDULE_DELAY",
        "PENSTOCK_API_KEY",
        "PENSTOCK_CPU_ISA",
        "PYTEST_CURRENT_TEST",
        "SSL_CERT_FILE",
        "TERM",
        "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR",
    }
)
"""Variables that nothing reads while it is imported. Where another one is given a new value, the
program is executed."""

MODULES = (
    "encodings.idna",
    "importlib.resources.readers",
    "jinja2",
    "penstock.cli.main",
    "penstock.cli.process_arguments",
    "penstock.cli.processes",
    "penstock.cli.serve",
    "penstock.families.served",
    "penstock.families.vision.served",
    "penstock.llm.sync",
    "penstock.llm.asynchronous",
    "penstock.prepare.by_transformers",
    "penstock.prepare.checkpoint",
    "penstock.prepare.hub_pooling",
    "penstock.prepare.pipeline",
    "penstock.supervisor.system",
    "penstock_engine.process",
    "penstock_gateway.process",
    "penstock_grammars.compiler",
    "penstock_worker.attention.pictures_apart",
    "penstock_worker.extensions",
    "penstock_worker.forward.cpu.backend",
    "penstock_worker.forward.reference",
    "penstock_worker.loading.again",
    "penstock_worker.loading.load",
    "penstock_worker.loading.pooling",
    "penstock_worker.loading.tensors",
    "penstock_worker.pooling.encoders",
    "penstock_worker.pooling.decoders",
    "penstock_worker.pooling.cpu",
    "penstock_worker.pooling.space",
    "penstock_worker.process",
    "penstock_worker.sampler.transfers",
    "uvicorn.lifespan.off",
    "uvloop",
)
"""What processes begin with, what they import once they know their model, and what these import."""

PR_SET_CHILD_SUBREAPER = 36
MESSAGE = 1 << 18
"""Bytes of a request, at most."""
FILES = 64
"""Files of a process, at most."""

_PYTHON = sys.executable
_EXECUTED = subprocess.Popen
_CALL = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class Preloaded:
    """The process that has imported everything, and forks. It ends with `close` or its parent.

    programs: whether it also forks what runs a program's text, as `python -c`: a test's own. What
    Penstock runs so wants a bare interpreter.
    """

    programs = True

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None  # from when it is first needed
        self._socket: socket.socket | None = None

    def fork(self, wanted: Wanted, files: list[int]) -> int:
        """The pid of the new process, which is a child of this one.

        Who forks it leaves at once, and this process adopts what is left alone meanwhile.
        """
        with self._lock:
            asking = self._socket or self._start()
            _adopt(True)
            try:
                socket.send_fds(asking, [msgspec.json.encode(wanted)], files)
                return int(asking.recv(MESSAGE))
            finally:
                _adopt(False)

    def _start(self) -> socket.socket:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _EXECUTED(
                [_PYTHON, "-m", "testing.preloaded", str(theirs.fileno())],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return self._socket

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(60)


class _Forking:
    """A `Preloaded` in a process that was forked itself: it has everything, and asks nobody."""

    programs = False

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def fork(self, wanted: Wanted, files: list[int]) -> int:
        pid = os.fork()
        if pid == 0:
            become(wanted, files, lambda: _use(self))
        return pid


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    """Forks what it can, by `source`."""

    source: Preloaded | _Forking

    def _execute_child(self, *given: Any, **named: Any) -> None:
        call = _CALL.bind(self, *given, **named).arguments
        wanted = _wanted(call, self.source.environment, programs=self.source.programs)
        if wanted is None:
            super()._execute_child(*given, **named)  # type: ignore[misc]
            return
        begun, until_begun = os.pipe()
        standard = (call["p2cread"], call["c2pwrite"], call["errwrite"])
        files = [number if given == -1 else given for number, given in enumerate(standard)]
        try:
            self.pid = self.source.fork(wanted, [*files, until_begun, *wanted.passed])
            self._child_created = True
        finally:
            os.close(until_begun)
            os.read(begun, 1)  # It ends when the child has its group, its session and its files.
            os.close(begun)
            ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(call[end] for end in ends))  # type: ignore[attr-defined]


def _wanted(call: dict[str, Any], loaded_with: dict[str, str], *, programs: bool) -> Wanted | None:
    """What a fork would have to be; None where the program has to be executed."""
    command = call["args"]
    if isinstance(command, (str, bytes, os.PathLike)) or call["executable"] is not None:
        return None
    words = [os.fspath(word) for word in command]
    program = words[1:3] == ["-m", "penstock"] or (words[1:2] == ["-c"] and programs)
    own = call["preexec_fn"], call["gid"], call["gids"], call["uid"]
    if words[0] != _PYTHON or not program or any(value is not None for value in own):
        return None
    environment = dict(os.environ if call["env"] is None else call["env"])
    changed = {
        name
        for name in environment.keys() | loaded_with.keys()
        if environment.get(name) != loaded_with.get(name)
    }
    if changed - VARYING or call["umask"] >= 0 or call["shell"] or not call["close_fds"]:
        return None
    return Wanted(
        words=words,
        environment=environment,
        folder=os.fspath(call["cwd"] or os.getcwd()),
        passed=sorted(call["pass_fds"]),
        group=call["process_group"],
        session=call["start_new_session"],
        parent=os.getpid(),
    )


@contextmanager
def in_use(source: Preloaded) -> Iterator[None]:
    """Meanwhile, they are forked from there, where that can be: on Linux, without a GPU."""
    before = subprocess.Popen
    if sys.platform == "linux" and not GPUS.exists():
        _use(source)
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc]


@contextmanager
def executed() -> Iterator[None]:
    """Meanwhile, they are executed."""
    before = subprocess.Popen
    subprocess.Popen = _EXECUTED  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc]


def _use(source: Preloaded | _Forking) -> None:
    _Popen.source = source
    subprocess.Popen = _Popen  # type: ignore[misc]


def _adopt(whether: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(whether), 0, 0, 0)


def _do_once() -> None:
    """What each process would do anew: flags, types of messages, routes, the default model's
    tokenizer, which gateways are forked with."""
    from penstock.cli.commands import COMMANDS
    from penstock.prepare import load_manifest, prepare
    from penstock.text.read_ahead import read_ahead
    from penstock_gateway.process import make_ahead

    for command in COMMANDS:
        command.parser()
    make_ahead()
    folder = prepare(MODEL)
    load_manifest(folder)
    read_ahead((folder / "tokenizer.json").read_bytes())


def _keep() -> None:
    """What is there by now stays: forks neither go through it for garbage, nor take it apart when
    they end, torch's libraries above all."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    gc.collect()
    gc.freeze()


def main() -> None:
    """Forks for whoever has the other end of the socket, until it is closed."""
    for name in MODULES:
        importlib.import_module(name)
    _do_once()
    _keep()
    # The first time, it finds where titles stand; that has to be before any variable has moved.
    setproctitle.setproctitle("tests: preloaded")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's comes to all; it ends with ours.
    forking = _Forking(dict(os.environ))
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        while True:
            message, files, *_ = socket.recv_fds(asking, MESSAGE, FILES)
            if not message:
                return
            wanted = msgspec.json.decode(message, type=Wanted)
            reading, writing = os.pipe()
            between = os.fork()
            if between == 0:
                with suppress(OSError):
                    os.write(writing, str(forking.fork(wanted, files)).encode())
                os._exit(0)
            os.close(writing)
            pid = os.read(reading, 32)
            os.waitpid(between, 0)
            for descriptor in (reading, *files):
                os.close(descriptor)
            asking.send(pid)


if __name__ == "__main__":
    # As a module that others import, so that there is one of each class.
    from testing.preloaded import main as _main

    _main()
