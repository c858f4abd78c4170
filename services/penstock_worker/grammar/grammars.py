"""Compiled grammars, the slots' matchers, and the threads that work on both.

A slot's next mask is begun as soon as its last token is known, and is computed while the next
forward pass runs.  When the logits are there, a step waits for masks no longer than its budget; a
slot whose mask is late has no token in this step, and the computation goes on for the next one. A
matcher that was slow last time works in a lane of its own and is not waited for as long as anybody
else is in the step: so the quick ones never wait for it, and it is never waited for twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Event, Thread, get_ident

import numpy as np

from penstock.process import logs
from penstock.protocol.common import Grammar
from penstock.protocol.from_worker import GrammarFailed, GrammarReady
from penstock.protocol.to_worker import NewSequence, Plan, ToWorker
from penstock.protocol.worker_resources import MAX_COMPILING, CompileGrammar, DropGrammar
from penstock_worker.batch.slots import PlanError
from penstock_worker.grammar.errors import GrammarError, GrammarUnavailable, TokenRefused
from penstock_worker.grammar.interface import Compile, Compiled, Matcher
from penstock_worker.grammar.mask import Mask
from penstock_worker.machine.priority import step_back
from penstock_worker.steps.feature import StepFeature

log = logs.get(__name__)

QUICK_THREADS = 2

IDLE_SECONDS = 1.0
"""Seconds without a step after which a worker counts as idle."""

Tell = Callable[[GrammarReady | GrammarFailed], None]


Agree = Callable[[list[bool]], list[bool]]


def _by_itself(flags: list[bool]) -> list[bool]:
    return flags


class _Held:
    """A slot's matcher. One job at a time works on it.

    slow: its last job took longer than a step may wait.  late: a step has gone without its mask.
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.matcher: Matcher | None = None
        self.slow = False
        self.late = False
        self.mask: Future[np.ndarray]
        self.forced: Future[list[int]]
        """What follows its tokens without a choice: known before the mask is."""


class SlotGrammars(StepFeature):
    """budget: seconds that a step may wait for masks, all its rounds together. Threads that compute
    shares of it wait at the same time, each so long.
    agree: combines what several ranks report of the same masks (whether each is late); called in
    every step that has grammars.  prepare: called first in each thread that compiles, before it
    gives way to those that compute steps.  early: what can be begun before it, concurrently with
    steps.  end: what `close` calls last.

    `compile`, `drop` and `reset` are the session's; `take`, `masks` and `advance` the runner's.
    """

    name = "grammars"
    heard = (CompileGrammar,)
    received = (DropGrammar,)

    def __init__(
        self,
        compile: Compile,
        *,
        budget: float = 0.0,
        agree: Agree = _by_itself,
        prepare: Callable[[], None] = lambda: None,
        early: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._compile = compile
        self._prepare = prepare
        self._early = early
        self._end = end
        self._stepped = time.monotonic()
        """When the latest step began."""
        self._closed = Event()
        self._agree = agree
        self._budget = budget
        self._waited: dict[int, float] = {}
        """Seconds of the present step's, by thread: threads that compute a share of it each wait at
        the same time."""
        self._compiled: dict[int, Compiled] = {}
        self._held: dict[int, _Held] = {}
        self._compilers = ThreadPoolExecutor(MAX_COMPILING, "grammar-compile", self._ready)
        self._quick = ThreadPoolExecutor(QUICK_THREADS, "grammar-mask")
        self._slow = ThreadPoolExecutor(1, "grammar-slow", step_back)

    def warm(self) -> None:
        """Prepares a thread that compiles, before a grammar comes. Returns at once."""
        self._compilers.submit(lambda: None)

    def warm_when_idle(self, seconds: float = IDLE_SECONDS) -> None:
        """Does so once there has been no step for so many seconds, from now on. Returns at once.

        The preparation takes a second of a processor, and Python's lock: before the first request
        it would delay everybody who waits for the model, and during steps all sequences.
        """
        self._stepped = time.monotonic()
        Thread(target=self._warm_then, args=(seconds,), name="grammar-warm", daemon=True).start()

    def _warm_then(self, seconds: float) -> None:
        while (left := self._stepped + seconds - time.monotonic()) > 0:
            if self._closed.wait(left):
                return
        self._early()
        with suppress(RuntimeError):  # It was closed just now.
            self.warm()
        self._closed.wait()  # What was begun early ends with the thread that began it.

    def _ready(self) -> None:
        self._prepare()
        step_back()

    def hear(self, message: ToWorker, frames: Sequence[bytes], tell: Tell) -> None:
        if isinstance(message, CompileGrammar):
            self.compile(message.grammar, message.definition, tell)

    def receive(self, message: ToWorker, tell: Tell) -> None:
        if isinstance(message, DropGrammar):
            self.drop(message.grammar)

    def compile(self, number: int, definition: Grammar, tell: Tell) -> None:
        """Returns at once; `tell` is called from another thread. From any thread."""
        self._compilers.submit(self._compile_one, self._compiled, number, definition, tell)

    def drop(self, number: int) -> None:
        """Sequences that follow it go on."""
        self._compiled.pop(number, None)

    def reset(self) -> None:
        """Another session with the engine begins: its numbers mean other grammars."""
        for slot in list(self._held):
            self._release(slot)
        self._compiled = {}

    def close(self) -> None:
        """End the threads, without waiting for what they do."""
        self.reset()
        self._closed.set()
        for pool in (self._compilers, self._quick, self._slow):
            pool.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _compile_one(
        self, compiled: dict[int, Compiled], number: int, definition: Grammar, tell: Tell
    ) -> None:
        begun = time.monotonic()
        try:
            compiled[number] = self._compile(definition)
        except GrammarError as error:
            tell(GrammarFailed(number, str(error)))
        except GrammarUnavailable as error:
            tell(GrammarFailed(number, str(error), unavailable=True))
        except BaseException as error:  # A library written in Rust may panic: no Exception.
            log.error("a grammar can't be compiled", exception=True)
            tell(GrammarFailed(number, f"{type(error).__name__}: {error}"))
        else:
            log.info("grammar compiled", kind=definition.kind, seconds=time.monotonic() - begun)
            tell(GrammarReady(number))

    def take(self, plan: Plan) -> None:
        """Follows the plan's releases and admissions. Raises PlanError for an unknown grammar."""
        self._stepped = time.monotonic()
        self._waited.clear()
        for slot in plan.released:
            self._release(slot)
        for new in plan.admitted:
            compiled = self._grammar_of(new)
            if compiled is None:
                continue
            held = self._held[new.slot] = _Held(compiled)
            self._begin(held, new.tokens if new.like is not None else new.tokens[new.num_prompt :])

    def _grammar_of(self, new: NewSequence) -> Compiled | None:
        if new.like is not None:
            other = self._held.get(new.like)
            return None if other is None else other.compiled
        if new.grammar is None:
            return None
        compiled = self._compiled.get(new.grammar)
        if compiled is None:
            raise PlanError(f"slot {new.slot}: grammar {new.grammar} is not compiled")
        return compiled

    def bound(self, slots: Sequence[int]) -> set[int]:
        """Returns which of the slots have a grammar."""
        return self._held.keys() & slots if self._held else set()

    def advance(self, slot: int, token: int) -> None:
        """The slot has a new token; the mask of the one after it is begun."""
        held = self._held.get(slot)
        if held is not None:
            self._begin(held, [token])

    @property
    def count(self) -> int:
        """Slots that have a grammar."""
        return len(self._held)

    def forced(self, slot: int, seconds: float = 0.0) -> list[int]:
        """What follows the slot's tokens without a choice; empty where it has no grammar, there is
        a choice, or that isn't known after so many seconds."""
        held = self._held.get(slot)
        if held is None or held.slow:
            return []
        wait([held.forced], timeout=seconds)
        return held.forced.result() if held.forced.done() else []

    def masks(self, slots: Sequence[int]) -> dict[int, Mask]:
        """Masks of those slots that have a grammar. Waits for them, within what is left of the
        step's budget."""
        held = {slot: self._held[slot] for slot in slots if slot in self._held}
        if not held:
            return {}
        wanted = [one.mask for one in held.values() if not one.slow and not one.late]
        if not wanted and len(held) == len(slots):
            wanted = [one.mask for one in held.values()]  # Others don't wait.
        begun, waited = time.monotonic(), self._waited.get(get_ident(), 0.0)
        wait(wanted, timeout=max(0.0, self._budget - waited))
        self._waited[get_ident()] = waited + time.monotonic() - begun
        late = self._agree([not one.mask.done() for one in held.values()])
        return {
            slot: self._mask(one, is_late)
            for (slot, one), is_late in zip(held.items(), late, strict=True)
        }

    def _mask(self, held: _Held, late: bool) -> Mask:
        if late:
            held.late = True
            return Mask()
        error = held.mask.exception()
        if error is not None:
            words = f"the output can't continue to follow its grammar: {error}"
            refused = isinstance(error, TokenRefused)
            return Mask(None, words, "grammar_mismatch" if refused else "complex_grammar")
        return Mask(held.mask.result())

    def _begin(self, held: _Held, tokens: Sequence[int]) -> None:
        lane = self._slow if held.slow else self._quick
        held.late = False
        held.forced = Future()
        held.mask = lane.submit(self._work, held, tokens, held.forced)

    def _work(self, held: _Held, tokens: Sequence[int], forced: Future[list[int]]) -> np.ndarray:
        begun = time.monotonic()
        try:
            if held.matcher is None:
                held.matcher = held.compiled.matcher()
            held.matcher.advance(tokens)
            forced.set_result(held.matcher.forced())
            return held.matcher.allowed()
        finally:
            held.slow = time.monotonic() - begun > self._budget
            if not forced.done():
                forced.set_result([])

    def _release(self, slot: int) -> None:
        held = self._held.pop(slot, None)
        if held is not None:
            held.mask.cancel()
