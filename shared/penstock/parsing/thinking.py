"""Blocks of thinking: `<think>…</think>` before the answer."""

from __future__ import annotations

from collections.abc import Callable

from penstock.parsing.call_text import overlap
from penstock.parsing.events import Content, Event, Reasoning, merged
from penstock.parsing.interface import ReasoningParser

OPEN = "<think>"
CLOSE = "</think>"
MAX_SPACE = 1024
"""Characters of whitespace before the opening tag."""


class ThinkBlocks(ReasoningParser):
    """One block, at the beginning of the text. Whitespace behind its two tags is dropped, and a
    line break before the second.

    A prompt that ends in an open block has begun it already; one that ends in a closed block leaves
    none to come.  A block that isn't closed is thinking to the end.
    """

    closing_tag = CLOSE
    open_at_first = False
    """Whether a text begins inside of the block where the prompt says nothing about it."""

    def __init__(self, prompt: str) -> None:
        super().__init__(prompt)
        end = prompt.rstrip()
        inside = end.endswith(OPEN) or (self.open_at_first and not end.endswith(CLOSE))
        self._rest = ""
        self._events: list[Event] = []
        self._state: Callable[[bool], bool] = self._repeated if inside else self._start

    def push(self, text: str) -> list[Event]:
        self._rest += text
        return self._walk(ended=False)

    def finish(self) -> list[Event]:
        return self._walk(ended=True)

    @property
    def held(self) -> int:
        return len(self._rest)

    def _walk(self, *, ended: bool) -> list[Event]:
        while self._state(ended):
            pass
        events, self._events = merged(self._events), []
        return events

    def _go(self, state: Callable[[bool], bool]) -> bool:
        self._state = state
        return True

    def _start(self, ended: bool) -> bool:
        """Before the opening tag, or content that has none."""
        text = self._rest.lstrip()
        if len(self._rest) - len(text) > MAX_SPACE:
            return self._go(self._content)
        if OPEN.startswith(text) and text != OPEN and not ended:
            return False
        if not text.startswith(OPEN):
            return self._go(self._content)
        self._rest = text.removeprefix(OPEN)
        return self._go(self._begun)

    def _repeated(self, ended: bool) -> bool:
        """Inside already: a model may repeat the opening tag that the prompt ends in."""
        self._rest = self._rest.lstrip()
        if OPEN.startswith(self._rest) and self._rest != OPEN and not ended:
            return False
        self._rest = self._rest.removeprefix(OPEN)
        return self._go(self._begun)

    def _begun(self, ended: bool) -> bool:
        self._rest = self._rest.lstrip()
        return self._go(self._inside) if self._rest else False

    def _inside(self, ended: bool) -> bool:
        at = self._rest.find(CLOSE)
        if at >= 0:
            self._events.append(Reasoning(self._rest[:at].removesuffix("\n")))
            self._rest = self._rest[at + len(CLOSE) :]
            return self._go(self._behind)
        keep = max(overlap(self._rest, CLOSE), overlap(self._rest, "\n" + CLOSE))
        certain = len(self._rest) - (0 if ended else keep)
        self._events.append(Reasoning(self._rest[:certain]))
        self._rest = self._rest[certain:]
        return False

    def _behind(self, ended: bool) -> bool:
        self._rest = self._rest.lstrip()
        return self._go(self._content) if self._rest else False

    def _content(self, ended: bool) -> bool:
        self._events.append(Content(self._rest))
        self._rest = ""
        return False


class DeepSeekR1(ThinkBlocks):
    """The text begins inside of the block: these models' templates, or habits, open it."""

    open_at_first = True
