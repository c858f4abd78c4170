"""A grammar is compiled in a process of its own first, which is ended where it takes too much."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from penstock import logs
from penstock.protocol.common import Grammar
from penstock_worker.grammar_text.child import CompileResult, receive, send
from penstock_worker.grammar_text.errors import GrammarError

log = logs.get(__name__)

CPU_SECONDS = 2.0
"""That compiling may take. Of the processor and not of the clock: what is refused doesn't depend on
what else the machine does."""
LOOK = 0.05
"""Seconds between looks at how much it has taken."""
NICENESS = 10

_TICKS = os.sysconf("SC_CLK_TCK")


class Trial:
    """One such process, started when the first grammar comes, and again after it was ended.

    Used by one thread at a time, which must live as long as the worker does.
    """

    def __init__(self, tokenizer: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._arguments = [str(tokenizer), str(vocab_size), *map(str, eos_token_ids)]
        self._child: subprocess.Popen[bytes] | None = None

    def source(self, definition: Grammar) -> str:
        """llguidance's text for it. Raises GrammarError, also where compiling takes too much."""
        child = self._child if self._child is not None else self._start()
        result = self._ask(child, msgspec.msgpack.encode(definition), CPU_SECONDS)
        if result is None:
            raise GrammarError(
                f"compiling it takes more than {CPU_SECONDS:g} s of processor time, or too much "
                "memory"
            )
        if result.source is None:
            raise GrammarError(result.reason)
        return result.source

    def close(self) -> None:
        """Ends the process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def end(self) -> None:
        """The same from any thread: what is being compiled fails."""
        child = self._child
        if child is not None:
            child.kill()
            child.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock_worker.grammar_text.child", *self._arguments]
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Panics of hostile grammars are no news.
        )
        os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
        self._child = child
        result = self._ask(child, b"", 60.0)
        if result is None:
            raise GrammarError("structured output doesn't work here: its process ended")
        if result.source is None:
            self.close()
            raise GrammarError(result.reason)
        return child

    def _ask(
        self, child: subprocess.Popen[bytes], message: bytes, seconds: float
    ) -> CompileResult | None:
        """None where it took too much, and was ended."""
        done = threading.Event()
        watcher = threading.Thread(
            target=_end_when_overdue, args=(child, done, _cpu(child.pid) + seconds), daemon=True
        )
        watcher.start()
        try:
            send(cast("BinaryIO", child.stdin), message)
            answer = receive(cast("BinaryIO", child.stdout))
            if answer is not None:
                return msgspec.msgpack.decode(answer, type=CompileResult)
        except OSError as error:
            log.warning("the grammar process died", reason=str(error))
        finally:
            done.set()
            watcher.join()
        self.close()
        return None


def _end_when_overdue(child: subprocess.Popen[bytes], done: threading.Event, end: float) -> None:
    while not done.wait(LOOK):
        if _cpu(child.pid) > end:
            child.kill()
            return


def _cpu(pid: int) -> float:
    """Seconds of the processor that a process has taken."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
