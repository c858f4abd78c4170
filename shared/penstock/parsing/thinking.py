"""Blocks of thinking before the answer: `<think>…</think>` and the like."""

from __future__ import annotations

from penstock.parsing.call_text import overlap
from penstock.parsing.format import ThoughtFormat, with_letters
from penstock.parsing.interface import Content, Reasoning, WalkingParser

MAX_SPACE = 1024
"""Characters of whitespace before the opening tag."""


def begins_inside(form: ThoughtFormat, prompt: str) -> bool:
    """Whether an answer to this prompt begins within its thoughts."""
    begun = prompt.rstrip().endswith(form.block.begin.rstrip())
    return begun or (form.open_at_first and not is_over(form, prompt))


def is_over(form: ThoughtFormat, prompt: str) -> bool:
    """Whether the prompt has ended the thoughts itself."""
    return prompt.rstrip().endswith(form.block.end)


class ThinkBlocks(WalkingParser):
    """One block, at the beginning of the text. Whitespace after its two tags is dropped, and a
    line break before the second.

    A prompt that ends in an open block has begun it already; one that ends in a closed block leaves
    none to come.  A block that isn't closed is thinking to the end.
    prompt: the filled chat template, or its end.  letters: what stands in the text for marks that
    are tokens.
    """

    def __init__(
        self, form: ThoughtFormat, prompt: str, letters: dict[str, str] | None = None
    ) -> None:
        super().__init__(self._repeated if begins_inside(form, prompt) else self._start)
        form = with_letters(form, letters or {})
        self._begin, self._end = form.block
        self._ends = (self._end, *form.ended_by)
        self._dropped = form.dropped

    def _start(self, ended: bool) -> bool:
        """Before the opening tag, or content that has none. A closing one means that there are no
        thoughts."""
        text = self._rest.lstrip()
        if len(self._rest) - len(text) > MAX_SPACE:
            return self._go(self._content)
        marks = (self._begin, self._end)
        if not ended and any(mark.startswith(text) and text != mark for mark in marks):
            return False
        if text.startswith(self._end):
            self._rest = text.removeprefix(self._end)
            return self._go(self._after_mark)
        if not text.startswith(self._begin):
            return self._go(self._content)
        self._rest = text.removeprefix(self._begin)
        return self._go(self._begun)

    def _repeated(self, ended: bool) -> bool:
        """Inside already: a model may repeat the opening tag that the prompt ends in."""
        self._rest = self._rest.lstrip()
        if self._begin.startswith(self._rest) and self._rest != self._begin and not ended:
            return False
        self._rest = self._rest.removeprefix(self._begin)
        return self._go(self._begun)

    def _begun(self, ended: bool) -> bool:
        self._rest = self._rest.lstrip()
        return self._go(self._inside) if self._rest else False

    def _inside(self, ended: bool) -> bool:
        rest = self._rest
        found = [(at, mark) for mark in self._ends if (at := rest.find(mark)) >= 0]
        if found:
            at, _ = min(found)
            self._events.append(Reasoning(rest[:at].removesuffix("\n")))
            self._rest = rest[at:].removeprefix(self._end)
            return self._go(self._after_mark)
        keep = max(overlap(rest, before + mark) for mark in self._ends for before in ("", "\n"))
        certain = len(rest) - (0 if ended else keep)
        self._events.append(Reasoning(rest[:certain]))
        self._rest = rest[certain:]
        return False

    def _after_mark(self, ended: bool) -> bool:
        self._rest = self._rest.lstrip()
        return self._go(self._content) if self._rest else False

    def _content(self, ended: bool) -> bool:
        rest = self._rest
        found = [(at, mark) for mark in self._dropped if (at := rest.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            self._events.append(Content(rest[:at]))
            self._rest = rest[at + len(mark) :]
            return True
        keep = 0 if ended else max([overlap(rest, mark) for mark in self._dropped], default=0)
        self._events.append(Content(rest[: len(rest) - keep]))
        self._rest = rest[len(rest) - keep :]
        return False
