"""Calls in an answer's text, read by the description of their format."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Collection, Mapping
from typing import Any

from penstock.parsing.call_object import ArgumentsObject, CallEntry, CallObject
from penstock.parsing.call_text import MAX_SPACE, CallText, Item, overlap
from penstock.parsing.format import (
    CallFormat,
    CallHead,
    KeyedValues,
    LooseObject,
    with_letters,
)
from penstock.parsing.interface import CallBegin, Event, merged
from penstock.parsing.keyed_values import KeyedArguments
from penstock.parsing.loose_object import LooseArguments
from penstock.parsing.python_call import PythonCall

MAX_HEAD = 512
"""Characters of what stands before the arguments."""
_FENCE = re.compile(r"```(?:json)?[ \t]{0,16}\n")
_MAX_FENCE = len("```json") + 17
_FENCE_END = "```"
_FENCE_LINE = re.compile(r" {0,3}```([^\n`]{0,64})\n")
_MAX_FENCE_LINE = 70
_LINE = re.compile(r"^(?:[{\[]| {0,3}```)", re.MULTILINE)
"""What a line begins with that may be a call, or the edge of a code block."""
_EDGE = re.compile(r"^ {0,3}```", re.MULTILINE)
_LINE_SO_FAR = re.compile(r"^(?: {1,3}| {0,3}`{1,2})\Z", re.MULTILINE)
_ID_LETTERS = string.ascii_letters + string.digits


class FormatCalls(CallText):
    """Reads by `form`. A text with marks that turns out to be no call is content, marks included.

    tools: names of the functions that the request offers, or a mapping of them to the schemas of
    their parameters.  letters: what stands in the text for marks that are tokens.
    """

    def __init__(
        self, form: CallFormat, tools: Collection[str], letters: dict[str, str] | None = None
    ) -> None:
        super().__init__(tools)
        self._schemas: Mapping[str, Any] = tools if isinstance(tools, Mapping) else {}
        self._letters = frozenset((letters or {}).values())
        self._form = form = with_letters(form, letters or {})
        self._marked = False
        """Whether the call that is read has marks."""
        self._separators = re.compile(rf"[\s{re.escape(form.separators)}]*")
        self._block, self._call = form.block, form.call
        self._begins = [marks.begin for marks in (form.block, form.call) if marks is not None]
        self._ends = tuple(marks.end for marks in (form.call, form.block) if marks is not None)
        self._fenced = self._in_block = False
        self._at_line = True
        """Whether content goes on at a line's beginning."""
        self._in_code = False
        """Whether content goes on in a code block."""
        self._over = False
        """Whether no call without marks may follow."""
        self._begin = CallBegin("")

    def finish(self) -> list[Event]:
        """Marks that are tokens begin nothing but calls: what of one was cut short isn't said."""
        events = self._walk(ended=True)
        left = self._prefix + self._rest
        self._prefix = self._rest = ""
        if not self._letters.isdisjoint(left):
            return events
        self._say(left)
        said, self._events = self._events, []
        return merged([*events, *said])

    def _start(self, ended: bool) -> bool:
        if (stop := self._eat_space()) is not None:
            return stop
        form, rest = self._form, self._rest
        if form.bare and "named" in form.bodies:
            return self._go(self._head)
        if form.bare and self._begins_body():
            return self._go(self._body)
        if form.fenced and rest.startswith("`") and not self._fenced:
            return self._go(self._fence)
        if self._waits(self._begins, ended):
            return False
        if any(rest.startswith(mark) for mark in self._begins):
            self._prefix = ""
            return self._go(self._content)
        return self._give_back()

    def _begins_body(self) -> bool:
        letter, bodies = self._rest[0], self._form.bodies
        return (letter == "{" and "object" in bodies) or (letter == "[" and "list" in bodies)

    def _fence(self, ended: bool) -> bool:
        match = _FENCE.match(self._rest)
        if match is None:
            if "\n" in self._rest or len(self._rest) > _MAX_FENCE or ended:
                return self._give_back()
            return False
        self._eat(match.end())
        self._fenced = True
        return self._go(self._body if self._marked else self._start)

    def _content(self, ended: bool) -> bool:
        """Content up to the first mark or line that may begin a call."""
        rest = self._rest
        found = [(at, mark) for mark in self._begins if (at := rest.find(mark)) >= 0]
        line = self._next_line(_EDGE if self._in_code else _LINE)
        if line is not None and all(line.start() < at for at, _ in found):
            self._say(rest[: line.start()])
            self._rest = rest[line.start() :]
            return self._go(self._line)
        if not found:
            keep = 0 if ended else max([overlap(rest, mark) for mark in self._begins], default=0)
            if not ended and (begun := self._next_line(_LINE_SO_FAR)) is not None:
                keep = max(keep, len(begun[0]))
            self._say(rest[: len(rest) - keep])
            self._rest = rest[len(rest) - keep :]
            return False
        at, mark = min(found)
        self._say(rest[:at])
        self._rest = rest[at:]
        self._eat(len(mark))
        self._marked = True
        self._in_block = self._block is not None and mark == self._block.begin
        return self._go(self._next_call if self._in_block else self._body)

    def _next_line(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if not self._form.anywhere:
            return None
        return pattern.search(self._rest, 0 if self._at_line else 1)

    def _line(self, ended: bool) -> bool:
        """Reads a line of content that may be a call, or the edge of a code block."""
        rest = self._rest
        self._marked = False
        if not rest.lstrip(" ").startswith(_FENCE_END):
            return self._go(self._body)
        match = _FENCE_LINE.match(rest)
        if match is None:
            fence = len(rest) - len(rest.lstrip(" ")) + len(_FENCE_END)
            if not (ended or len(rest) > _MAX_FENCE_LINE or re.search("[`\n]", rest[fence:])):
                return False
            self._say(rest[:fence])
            self._rest = rest[fence:]
            return self._go(self._content)
        language = match[1].strip()
        if not self._in_code and language in ("", "json"):
            self._eat(match.end())
            self._fenced = True
            return self._go(self._start)
        self._in_code = not self._in_code or language != ""
        self._say(match[0])
        self._rest = rest[match.end() :]
        return self._go(self._content)

    def _say(self, text: str) -> None:
        if text:
            self._at_line = text.endswith("\n")
        super()._say(text)

    def _give_back(self) -> bool:
        self._in_code = self._in_code or self._fenced
        self._fenced = False
        return super()._give_back()

    def _next_call(self, ended: bool) -> bool:
        """Reads what stands in a block before its first call."""
        if (stop := self._eat_space()) is not None:
            return stop
        if self._call is None:
            return self._go(self._body)
        if self._waits([self._call.begin], ended):
            return False
        if not self._rest.startswith(self._call.begin):
            return self._give_back()
        self._eat(len(self._call.begin))
        return self._go(self._body)

    def _body(self, ended: bool) -> bool:
        if self._form.bodies == ("object",) and not self._form.fenced:
            return self._open(self._one(), self._close)
        if (stop := self._eat_space()) is not None:
            return stop
        letter, bodies = self._rest[0], self._form.bodies
        if letter == "`" and self._form.fenced and not self._fenced:
            return self._go(self._fence)
        if letter == "{" and "object" in bodies:
            return self._open(self._one(), self._close)
        if letter == "[" and "list" in bodies:
            self._eat(1)
            return self._go(self._item)
        if "named" in bodies:
            return self._go(self._head)
        if "python" in bodies:
            return self._open(PythonCall(self._known), self._close)
        return self._give_back()

    @property
    def _known(self) -> frozenset[str] | None:
        """Names that the call may have; None: any."""
        return self.tools if self._form.only_known or not self._marked else None

    def _one(self) -> Item:
        form = self._form
        if form.keys is None:
            return CallEntry(self._known)
        needs_arguments = form.needs_arguments or not self._marked
        return CallObject(self._known, needs_arguments=needs_arguments, keys=form.keys)

    def _listed(self) -> Item | None:
        if self._form.list_of == "python":
            return PythonCall(self._known)
        return self._one() if self._rest.startswith("{") else None

    def _head(self, ended: bool) -> bool:
        head = self._form.head
        if head is None:
            return self._give_back()
        seen = self._rest[:MAX_HEAD]
        found = [(at, mark) for mark in (*head.ends, *head.before) if (at := seen.find(mark)) >= 0]
        if not found:
            full = len(seen) == MAX_HEAD or ended or not self._may_be_head(seen.strip())
            return self._give_back() if full else False
        at, mark = min(found)
        if head.content and seen[:at].strip() == head.content:
            self._prefix, self._rest = "", self._rest[at + len(mark) :]
            return self._go(self._content)
        match = re.fullmatch(head.pattern, seen[:at].strip())
        if match is None:
            return self._give_back()
        named = match.groupdict()
        if self._known is not None and named["name"] not in self._known:
            return self._give_back()
        self._begin = CallBegin(named["name"], named.get("id") or "")
        self._eat(at if mark in head.before else at + len(mark))
        return self._go(self._arguments)

    def _may_be_head(self, seen: str) -> bool:
        """Whether it begins one, as far as names tell: content isn't kept waiting for more."""
        head = self._form.head
        if head is None or self._known is None or head.pattern != CallHead.pattern:
            return True
        return any(name.startswith(seen) for name in (*self._known, head.content))

    def _arguments(self, ended: bool) -> bool:
        arguments = self._form.arguments
        if isinstance(arguments, KeyedValues):
            schema = self._schemas.get(self._begin.name)
            return self._open(
                KeyedArguments(self._begin, arguments, schema, self._ends), self._close
            )
        if (stop := self._eat_space()) is not None:
            return stop
        if not self._rest.startswith("{"):
            return self._give_back()
        if isinstance(arguments, LooseObject):
            return self._open(LooseArguments(self._begin, arguments.quote), self._close)
        return self._open(ArgumentsObject(self._begin), self._close)

    def _after_list(self, ended: bool) -> bool:
        self._over = not self._form.anywhere
        return self._go(self._close)

    def _close(self, ended: bool) -> bool:
        """State at a call's end: reads its end mark, which many a model forgets."""
        end = self._call.end if self._call is not None else ""
        if not end:
            return self._go(self._between_calls())
        self._rest = self._rest.lstrip()
        ends = [end, _FENCE_END] if self._fenced else [end]
        if not self._rest or self._waits(ends, ended):
            return False
        if self._fenced and self._rest.startswith(_FENCE_END):
            self._rest = self._rest[len(_FENCE_END) :]
            self._fenced = False
            self._over = not self._form.anywhere
            return True
        self._rest = self._rest.removeprefix(end)
        return self._go(self._between_calls())

    def _between_calls(self) -> Callable[[bool], bool]:
        self._at_line = True
        if self._in_block:
            return self._between
        if self._form.separators:
            return self._separated
        if self._form.bare and not (self._marked or self._over):
            return self._another
        return self._own_space if self._form.space_stays or self._fenced else self._space

    def _space(self, ended: bool) -> bool:
        self._rest = self._rest.lstrip()
        return self._go(self._content) if self._rest else False

    def _another(self, ended: bool) -> bool:
        """After a call without marks, which others may follow: on a line or in a fence of their
        own, or after a comma. Whitespace is content only where the format says so, or in a
        fence, and if content follows."""
        stop = self._eat_space()
        if ended and stop is not None:
            self._prefix = ""
        if not (self._form.space_stays or self._fenced):
            self._prefix = self._prefix.lstrip()
        if stop is not None:
            return stop
        if self._begins_body():
            return self._go(self._body)
        if self._rest.startswith(",") and "," not in self._prefix:
            self._eat(1)
            return True
        if self._fenced and self._waits([_FENCE_END], ended):
            return False
        if self._fenced and self._rest.startswith(_FENCE_END):
            self._rest = self._rest[len(_FENCE_END) :]
            self._prefix = ""
            self._fenced = False
            return True if self._form.anywhere else self._go(self._own_space)
        if self._form.anywhere and self._rest.startswith("`") and not self._fenced:
            return self._go(self._fence)
        return self._give_back()

    def _between(self, ended: bool) -> bool:
        """Reads what stands in a block after a call."""
        match = self._separators.match(self._rest)
        self._rest = self._rest[match.end() if match else 0 :]
        block, call = self._block, self._call
        if not self._rest or block is None:
            return False
        begin = call.begin if call is not None else ""
        if self._waits([mark for mark in (begin, block.end) if mark], ended):
            return False
        if block.end and self._rest.startswith(block.end):
            self._rest = self._rest[len(block.end) :]
            self._in_block = False
            return self._go(self._space)
        if begin and self._rest.startswith(begin):
            self._eat(len(begin))
            return self._go(self._body)
        if call is None:
            return self._go(self._body)
        self._in_block = False
        return self._go(self._content)

    def _separated(self, ended: bool) -> bool:
        """Calls without a block, with letters between them."""
        match = self._separators.match(self._rest)
        self._eat(match.end() if match else 0)
        if len(self._prefix) > MAX_SPACE:
            return self._give_back()
        if self._rest and self._begins_body():
            return self._go(self._body)
        if self._rest or ended:
            if not self._prefix.strip():
                self._prefix = ""
            return self._give_back()
        return False

    def _own_space(self, ended: bool) -> bool:
        """Whitespace belongs to the calls if nothing follows; so does a fence's end."""
        if (stop := self._eat_space()) is not None:
            self._prefix = "" if ended else self._prefix
            return stop
        if not self._fenced:
            return self._give_back()
        if self._waits([_FENCE_END], ended):
            return False
        if self._rest.startswith(_FENCE_END):
            self._rest = self._rest[len(_FENCE_END) :]
            self._prefix = ""
            self._fenced = False
            return self._go(self._own_space)
        return self._give_back()

    def _waits(self, marks: list[str], ended: bool) -> bool:
        """Whether the rest may become one of the marks."""
        rest = self._rest
        return not ended and any(mark.startswith(rest) and mark != rest for mark in marks)


def short_id() -> str:
    """Nine letters and digits."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))
