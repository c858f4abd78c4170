"""Calls as models write them that were told no format of their own: the answer is a JSON object, or
an array of them, in a code fence or not:

    [{"name": "get_weather", "arguments": {"city": "Paris"}}]
"""

from __future__ import annotations

import re

from penstock.parsing.call_object import CallObject
from penstock.parsing.call_text import CallText

_FENCE = re.compile(r"```(?:json)?[ \t]{0,16}\n")
_MAX_FENCE = len("```json") + 17
_END = "```"


class JsonCalls(CallText):
    """Only objects that name a function of the request are calls; anything else is content."""

    _fenced = False

    def _start(self, ended: bool) -> bool:
        if (stop := self._eat_space()) is not None:
            return stop
        if self._rest.startswith("`") and not self._fenced:
            return self._go(self._fence)
        if self._rest.startswith("{"):
            return self._open(CallObject(self.tools, needs_arguments=True), self._after_array)
        if self._rest.startswith("["):
            self._eat(1)
            return self._go(self._item)
        return self._give_back()

    def _fence(self, ended: bool) -> bool:
        match = _FENCE.match(self._rest)
        if match is None:
            if "\n" in self._rest or len(self._rest) > _MAX_FENCE or ended:
                return self._give_back()
            return False
        self._eat(match.end())
        self._fenced = True
        return self._go(self._start)

    def _after_array(self, ended: bool) -> bool:
        """Whitespace, and a fence's end, belong to the calls."""
        if (stop := self._eat_space()) is not None:
            self._prefix = "" if ended else self._prefix
            return stop
        if not self._fenced:
            return self._give_back()
        if _END.startswith(self._rest) and self._rest != _END and not ended:
            return False
        if self._rest.startswith(_END):
            self._rest = self._rest[len(_END) :]
            self._prefix = ""
            self._fenced = False
            return self._go(self._after_array)
        return self._give_back()
