"""Grammars for the worker's tests: real ones compiled at once, and one whose masks wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import numpy as np

from penstock.protocol.common import Grammar
from penstock.protocol.from_worker import GrammarFailed, GrammarReady
from penstock.protocol.worker_resources import CompileGrammar
from penstock_worker.grammar.errors import GrammarError, TokenRefused
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.steps.feature import StepFeatures

EVEN = Grammar("lark", "even")


def compile_now(
    grammars: SlotGrammars | StepFeatures, number: int, definition: Grammar
) -> str | None:
    """Why it failed, or None."""
    answers: queue.SimpleQueue[GrammarReady | GrammarFailed] = queue.SimpleQueue()
    grammars.hear(CompileGrammar(number, definition), (), answers.put)
    answer = answers.get(timeout=60)
    assert answer.grammar == number
    return answer.reason if isinstance(answer, GrammarFailed) else None


class Evens:
    """A Compile whose matchers allow even ids after an even number of tokens, odd ones after an
    odd number; each mask waits until `open` is set. Fails at the `last`-th token."""

    def __init__(self, vocab: int, *, last: int = 10**9) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Semaphore(0)
        self.vocab = vocab
        self.last = last
        self.made = 0

    def __call__(self, definition: Grammar) -> Evens:
        if definition.text == "bad":
            raise GrammarError("it is bad")
        if definition.text == "panic":
            raise KeyboardInterrupt("a library's panic")
        return self

    def matcher(self) -> _Matcher:
        self.made += 1
        return _Matcher(self)


class _Matcher:
    def __init__(self, grammar: Evens) -> None:
        self._grammar = grammar
        self._count = 0

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token % 2 != self._count % 2:
                raise TokenRefused(f"token {token} doesn't fit at {self._count}")
            self._count += 1

    def forced(self) -> list[int]:
        return []

    def allowed(self) -> np.ndarray:
        self._grammar.waiting.release()
        assert self._grammar.open.wait(100)
        if self._count >= self._grammar.last:
            raise GrammarError("a limit was met")
        return np.arange(self._grammar.vocab) % 2 == self._count % 2
