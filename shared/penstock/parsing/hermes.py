"""Calls as Hermes and Qwen models write them:

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from __future__ import annotations

from penstock.parsing.call_object import CallObject
from penstock.parsing.call_text import CallText

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesCalls(CallText):
    """A block whose JSON isn't a call is content, tags included. Whitespace before the first block,
    if nothing else comes before it, and behind a block is the format's own."""

    def _start(self, ended: bool) -> bool:
        if (stop := self._eat_space()) is not None:
            return stop
        if OPEN.startswith(self._rest) and self._rest != OPEN and not ended:
            return False
        if self._rest.startswith(OPEN):
            self._prefix = ""
        return self._give_back()

    def _content(self, ended: bool) -> bool:
        if not self._until(OPEN, ended):
            return False
        return self._open(CallObject(None, needs_arguments=False), self._close)

    def _close(self, ended: bool) -> bool:
        self._rest = self._rest.lstrip()
        if not self._rest or (CLOSE.startswith(self._rest) and self._rest != CLOSE and not ended):
            return False
        self._rest = self._rest.removeprefix(CLOSE)
        return self._go(self._between)

    def _between(self, ended: bool) -> bool:
        self._rest = self._rest.lstrip()
        return self._go(self._content) if self._rest else False
