"""A parser of tool calls: a text that begins with `!NAME ` is a call, the rest its arguments."""

from __future__ import annotations

from collections.abc import Collection

from penstock.parsing import CallArguments, CallBegin, Content, Event, ToolParser


class ExclaimedCalls(ToolParser):
    """`--tool-call-parser exclaimed`. What it gives doesn't depend on where the text was cut."""

    LONGEST = 64
    """Characters of a name: so much is held back, and no more."""

    def __init__(self, tools: Collection[str]) -> None:
        super().__init__(tools)
        self._held = ""
        self._calls: bool | None = None  # None: nothing has come yet.
        self._named = False

    def push(self, text: str) -> list[Event]:
        if not text:
            return []
        if self._calls is None:
            self._calls = text[0] == "!"
            text = text[1:] if self._calls else text
        if not self._calls:
            return [Content(text)]
        if self._named:
            return [CallArguments(text)]
        self._held += text
        name, blank, arguments = self._held.partition(" ")
        if not blank and len(name) > self.LONGEST:
            self._calls = False
            return [Content(f"!{name}")]
        if not blank:
            return []
        self._named = True
        return [CallBegin(name), *([CallArguments(arguments)] if arguments else [])]

    def finish(self) -> list[Event]:
        if self._calls and not self._named:  # no arguments
            return [CallBegin(self._held), CallArguments("{}")]
        return []
