"""Calls as Mistral's models write them, of the older form and the newer:

[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]
[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
"""

from __future__ import annotations

import re
import secrets
import string

from penstock.parsing.call_object import ArgumentsObject, CallObject
from penstock.parsing.call_text import CallText

MARK = "[TOOL_CALLS]"
_HEAD = re.compile(r"([\w.-]{1,256})\s{0,16}(?:\[CALL_ID\][\w-]{1,64})?(?:\[ARGS\])?\s{0,16}(?={)")
_ID_LETTERS = string.ascii_letters + string.digits
MAX_HEAD = 512
"""Characters of what stands before the arguments."""


class MistralCalls(CallText):
    needs_special_tokens = True

    @staticmethod
    def new_id() -> str:
        """Mistral's templates refuse ids that aren't nine letters and digits."""
        return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))

    def _start(self, ended: bool) -> bool:
        if (stop := self._eat_space()) is not None:
            return stop
        if MARK.startswith(self._rest) and self._rest != MARK and not ended:
            return False
        if self._rest.startswith(MARK):
            self._prefix = ""
        return self._give_back()

    def _content(self, ended: bool) -> bool:
        return self._until(MARK, ended) and self._go(self._marked)

    def _marked(self, ended: bool) -> bool:
        if (stop := self._eat_space()) is not None:
            return stop
        if self._rest.startswith("["):
            self._eat(1)
            return self._go(self._item)
        if self._rest.startswith("{"):
            return self._open(self._array_call(), self._after_array)
        return self._go(self._named)

    def _named(self, ended: bool) -> bool:
        """The newer form; its head is short, and read at once when the brace has come."""
        brace = self._rest.find("{", 0, MAX_HEAD)
        if brace < 0 and len(self._rest) < MAX_HEAD and not ended:
            return False
        match = _HEAD.match(self._rest)
        if match is None:
            return self._give_back()
        self._eat(match.end())
        return self._open(ArgumentsObject(match[1]), self._after_array)

    def _array_call(self) -> CallObject:
        return CallObject(None, needs_arguments=False)

    def _after_array(self, ended: bool) -> bool:
        self._rest = self._rest.lstrip()
        return self._go(self._content) if self._rest else False
