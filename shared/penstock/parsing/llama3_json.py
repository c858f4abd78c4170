"""Calls as Llama 3.1 and later write them: the answer is one JSON object, or several with `;` or
`,` between them, with or without the mark `<|python_tag|>`:

    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}
"""

from __future__ import annotations

import re

from penstock.parsing.call_object import CallObject
from penstock.parsing.call_text import MAX_SPACE, CallText

MARK = "<|python_tag|>"
_SEPARATORS = re.compile(r"[\s;,]*")


class Llama3Calls(CallText):
    """Since an object may just as well be content, it is a call only if the request offers a
    function of that name."""

    needs_special_tokens = True

    def _start(self, ended: bool) -> bool:
        if (stop := self._eat_space()) is not None:
            return stop
        if self._rest.startswith("{"):
            return self._begin()
        if MARK.startswith(self._rest) and self._rest != MARK and not ended:
            return False
        if self._rest.startswith(MARK):
            self._prefix = ""
        return self._give_back()

    def _content(self, ended: bool) -> bool:
        return self._until(MARK, ended) and self._begin()

    def _begin(self) -> bool:
        return self._open(CallObject(self.tools, needs_arguments=True), self._between)

    def _between(self, ended: bool) -> bool:
        match = _SEPARATORS.match(self._rest)
        self._eat(match.end() if match else 0)
        if len(self._prefix) > MAX_SPACE:
            return self._give_back()
        if self._rest.startswith("{"):
            return self._begin()
        if self._rest or ended:
            if not self._prefix.strip():
                self._prefix = ""
            return self._give_back()
        return False
