"""A grammar is compiled in a process of its own first, which is ended where it takes too much."""

from __future__ import annotations

import msgspec

from penstock.process import logs
from penstock.process.isolated import STANDSTILL, Crashed, Died, Frozen, Stalled
from penstock.protocol.common import Grammar
from penstock_worker.grammar_text.child import CompileResult, receive, send
from penstock_worker.grammar_text.errors import GrammarError, GrammarUnavailable
from penstock_worker.grammar_text.trial_processes import TrialProcess, TrialProcesses
from penstock_worker.grammar_text.watched import ProcessorWatch, reason_of

log = logs.get(__name__)

CPU_SECONDS = 2.0
"""The seconds that compiling may take, of the processor and not of the clock: what is refused
doesn't depend on what else the machine does."""
ATTEMPTS = 3
"""Processes that a grammar gets when they die or stand still, for no fault of its own."""


class Trial:
    """One such process, made when the first grammar comes, and again after it was ended. Used by
    one thread at a time."""

    def __init__(self, processes: TrialProcesses) -> None:
        self._processes = processes
        self._child: TrialProcess | None = None
        self._ended = False

    @property
    def pid(self) -> int | None:
        """The pid of the process, if there is one."""
        return None if self._child is None else self._child.pid

    def source(self, definition: Grammar) -> str:
        """llguidance's text for it. Raises GrammarError, also where compiling takes too much, and
        GrammarUnavailable where no process can be had that compiles it."""
        message = msgspec.msgpack.encode(definition)
        for _ in range(ATTEMPTS):
            try:
                child = self._child = self._child or self._processes.fork()
                result = self._ask(child, message)
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

    def end(self) -> None:
        """Has what is being compiled fail, and nothing more compiled. May be called from any
        thread."""
        self._ended = True
        child = self._child
        if child is not None:
            child.kill()

    def _ask(self, child: TrialProcess, message: bytes) -> CompileResult:
        """The answer. Raises Stalled where it takes too much processor time, Frozen, Crashed or
        Died; the process has then ended."""
        watch = ProcessorWatch(child, CPU_SECONDS)
        try:
            send(child.stream, message)
            answer = receive(child.stream)
            if answer is not None:
                return msgspec.msgpack.decode(answer, type=CompileResult)
        except (OSError, msgspec.DecodeError):
            pass  # It ended before it had read or written all.
        finally:
            watch.close()
        self._child = None
        code = child.end()
        raise watch.reason or reason_of(code)
