"""What a fork does to be the process that a program's execution would have made."""

from __future__ import annotations

import asyncio
import atexit
import os
import resource
import runpy
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec
import setproctitle

LEAST_FREE = 200
"""Descriptors from here on are nobody's: files are kept there while they change places."""


class Wanted(msgspec.Struct):
    """A process. words: of its command.  folder: that it works in.  passed: numbers of the files
    that it gets beside the standard ones.  group: -1: its parent's, 0: its own.  session: whether
    it has one of its own.  parent: pid."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    passed: list[int]
    group: int
    session: bool
    parent: int


def become(wanted: Wanted, files: Sequence[int], before: Callable[[], None]) -> NoReturn:
    """In the fork: runs the program to its end.

    files: stdin, stdout, stderr, one that is closed when this process is what was asked for, then
    those that are passed.  before: called right before the program begins.
    """
    code = 1
    try:
        _forget_signals()
        if wanted.session:
            os.setsid()
        elif wanted.group >= 0:
            os.setpgid(0, wanted.group)
        while os.getppid() != wanted.parent:  # which adopts it in a moment
            os.kill(wanted.parent, 0)  # Raises where it died meanwhile.
            time.sleep(0.0005)
        _take(files, wanted.passed)
        os.chdir(wanted.folder)
        os.environ.clear()
        os.environ.update(wanted.environment)
        _forget_loop()
        before()
        code = _run(wanted.words)
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _forget_signals() -> None:
    """Sets signals as Python has them when it begins."""
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _take(files: Sequence[int], passed: Sequence[int]) -> None:
    """Puts the files into their places, and closes all others; the fourth one last."""
    import fcntl

    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, LEAST_FREE) for file in files]
    places = [0, 1, 2, *passed]
    for file, place in zip([*high[:3], *high[4:]], places, strict=True):
        os.dup2(file, place)
    begin = 3
    for place in [
        *sorted(place for place in passed),
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    ]:
        os.closerange(begin, place)
        begin = place + 1
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        old = getattr(sys, f"__{name}__")
        line = -1 if mode == "r" or (name == "stdout" and not os.isatty(number)) else 1
        new = open(number, mode, line, old.encoding, old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _forget_loop() -> None:
    asyncio.events._set_running_loop(None)
    asyncio.set_event_loop_policy(None)


def _run(words: Sequence[str]) -> int:
    """`python -m MODULE` or `python -c TEXT`, with its arguments. Returns the exit status."""
    setproctitle.setproctitle(" ".join(words))
    try:
        if words[1] == "-c":
            sys.argv, sys.path[0] = ["-c", *words[3:]], ""
            main = types.ModuleType("__main__")
            sys.modules["__main__"] = main
            exec(compile(words[2], "<string>", "exec"), vars(main))
        else:
            sys.argv, sys.path[0] = [*words[2:]], os.getcwd()
            runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    return 0


def _leave(code: int) -> NoReturn:
    """Leaves as Python ends."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
