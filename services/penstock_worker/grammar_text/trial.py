"""A grammar is compiled in a process of its own first, which is ended where it takes too much."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from penstock import logs
from penstock.isolated.process import (
    CRASHES,
    STANDSTILL,
    Crashed,
    Died,
    Frozen,
    Stalled,
    Standstill,
    cpu_seconds,
)
from penstock.protocol.common import Grammar
from penstock_worker.grammar_text.child import CompileResult, receive, send
from penstock_worker.grammar_text.errors import GrammarError, GrammarUnavailable

log = logs.get(__name__)

CPU_SECONDS = 2.0
"""That compiling may take. Of the processor and not of the clock: what is refused doesn't depend on
what else the machine does."""
START_SECONDS = 60.0
"""The same for loading the library."""
LOOK = 0.05
"""Seconds between looks at how much it has taken."""
ATTEMPTS = 3
"""Processes that a grammar gets when they die or stand still, for no fault of its own."""
NICENESS = 10


class Trial:
    """One such process, started when the first grammar comes, and again after it was ended.

    Used by one thread at a time, which must live as long as the worker does.
    """

    def __init__(self, tokenizer: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._arguments = [str(tokenizer), str(vocab_size), *map(str, eos_token_ids)]
        self._child: subprocess.Popen[bytes] | None = None
        self._ended = False

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        return None if self._child is None else self._child.pid

    def source(self, definition: Grammar) -> str:
        """llguidance's text for it. Raises GrammarError, also where compiling takes too much, and
        GrammarUnavailable where no process can be had that compiles it."""
        message = msgspec.msgpack.encode(definition)
        for _ in range(ATTEMPTS):
            try:
                result = self._ask(self._child or self._start(), message, CPU_SECONDS)
            except (Stalled, Crashed):
                raise GrammarError(
                    f"compiling it takes more than {CPU_SECONDS:g} s of processor time, or too "
                    "much memory"
                ) from None
            except Frozen:
                log.error("a grammar process stood still and was replaced", seconds=STANDSTILL)
            except Died as died:
                log.warning("a grammar process died", reason=str(died))
            else:
                if result.source is None:
                    raise GrammarError(result.reason)
                return result.source
            if self._ended:
                break
        raise GrammarUnavailable(
            "the process that compiles grammars stood still or died, and so did the next ones"
        )

    def close(self) -> None:
        """Ends the process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def end(self) -> None:
        """The same from any thread: what is being compiled fails, and no process is started any
        more."""
        self._ended = True
        child = self._child
        if child is not None:
            child.kill()
            child.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        """A process that has loaded the library. Raises GrammarError where it can't, and
        GrammarUnavailable where it gets no chance to."""
        command = [sys.executable, "-m", "penstock_worker.grammar_text.child", *self._arguments]
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # Panics of hostile grammars are no news.
            )
        except OSError as error:
            log.error("a grammar process can't be started", reason=str(error))
            raise GrammarUnavailable(
                "the process that compiles grammars can't be started"
            ) from None
        self._child = child
        if self._ended:
            child.kill()
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
        try:
            result = self._ask(child, b"", START_SECONDS)
        except (Stalled, Crashed):
            raise GrammarUnavailable(
                "structured output doesn't work here: its process ended"
            ) from None
        if result.source is None:
            self.close()
            raise GrammarError(result.reason)
        return child

    def _ask(self, child: subprocess.Popen[bytes], message: bytes, seconds: float) -> CompileResult:
        """The answer. Raises Stalled where it takes more processor time than so many seconds,
        Frozen, Crashed or Died; the process has then ended."""
        watch = _Watch(child, seconds)
        try:
            send(cast("BinaryIO", child.stdin), message)
            answer = receive(cast("BinaryIO", child.stdout))
            if answer is not None:
                return msgspec.msgpack.decode(answer, type=CompileResult)
        except (OSError, msgspec.DecodeError):
            pass  # It ended before it had read or written all.
        finally:
            watch.close()
        self.close()
        raise watch.reason or _reason(child.returncode)


class _Watch:
    """Ends a process, from a thread, where it takes too much processor time or gets none."""

    def __init__(self, child: subprocess.Popen[bytes], seconds: float) -> None:
        self.reason: Exception | None = None
        """Why it was ended, if it was."""
        self._child = child
        self._end = (cpu_seconds(child.pid) or 0.0) + seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The exchange is over. Whoever asks for `reason` afterwards gets the last word."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        standstill, looks = Standstill(self._child.pid), 0
        while not self._done.wait(LOOK):
            looks += 1
            if (cpu_seconds(self._child.pid) or 0.0) > self._end:
                self.reason = Stalled()
            elif looks * LOOK >= standstill.every:
                looks = 0
                if standstill.look():
                    self.reason = Frozen()
            if self.reason is not None:
                self._child.kill()
                return


def _reason(code: int | None) -> Exception:
    """Why a process has ended that nobody here has ended."""
    return Crashed() if code in CRASHES else Died(f"exit code {code}")
