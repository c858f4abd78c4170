"""Arguments as keys and values with marks of their own, as JSON: <parameter=city>Paris</parameter>.

A value whose schema admits nothing but strings is handed on as it comes; any other when it is
whole, since it takes all of it to say what it is.
"""

from __future__ import annotations

from typing import Any

from penstock.parsing.call_object import MAX_HELD
from penstock.parsing.call_text import MAX_SPACE, overlap
from penstock.parsing.events import CallArguments, CallBegin, Event
from penstock.parsing.format import KeyedValues, ValueKind
from penstock.parsing.values import is_text, json_string, parameter, typed, types_of

MAX_KEY = 512


class KeyedArguments:
    """Reads up to what is no key: the call's end mark, which is left. It is a call once a key has
    begun, or such a mark stands where one could.

    begin: the call.  ends: marks that may follow.  schema: of the function's parameters, or None.
    """

    def __init__(
        self, begin: CallBegin, marks: KeyedValues, schema: Any, ends: tuple[str, ...]
    ) -> None:
        self._call = begin
        self._marks = marks
        self._ends = tuple(end for end in ends if end)
        self._schema = schema
        self._rest = ""
        self._read = ""
        """What was read before it was a call."""
        self._state = self._between
        self._events: list[Event] = []
        self._keys: set[str] = set()
        self._types: frozenset[str] | None = None
        self._kind: ValueKind = "schema"
        self._value = ""
        self._streams = self._started = False
        self.left = ""
        self.begun = self.done = self.broken = False

    @property
    def held(self) -> str:
        return "" if self.begun else self._read + self._rest

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def push(self, text: str) -> int:
        self._rest += text
        while not (self.done or self.broken) and self._state():
            pass
        if not (self.done or self.broken):
            return len(text)
        self.left, self._rest = self._rest, ""
        return len(text)

    def end(self) -> None:
        """Between values, the end of the text ends the call too: a model forgot the mark."""
        if self.begun and self._state == self._between and not self._rest.strip():
            self._close()

    # --- states; each returns whether there is more to do

    def _between(self) -> bool:
        text = self._rest.lstrip()
        if len(self._rest) - len(text) > MAX_SPACE:
            return self._break()
        for end in self._ends:
            if text.startswith(end):
                self._skip(len(self._rest) - len(text))
                self._begin()
                self._close()
                return False
        key = self._marks.key
        if text.startswith(key):
            self._skip(len(self._rest) - len(text) + len(key))
            self._state = self._key
            return True
        if any(mark.startswith(text) for mark in (*self._ends, key)):
            return False
        return self._break()

    def _key(self) -> bool:
        seen = self._rest[:MAX_KEY]
        found = [
            (at, end, kind) for end, kind in self._marks.key_ends if (at := seen.find(end)) >= 0
        ]
        if not found:
            return self._break() if len(seen) == MAX_KEY else False
        at, end, self._kind = min(found)
        name = seen[:at].strip()
        self._skip(at + len(end))
        if not name or name in self._keys:
            return self._break()
        self._begin()
        schema = parameter(self._schema, name)
        self._types = types_of(schema, self._schema)
        if self._kind != "schema":
            self._types = frozenset({"string"}) if self._kind == "text" else None
        comma = ", " if self._keys else ""
        self._keys.add(name)
        self._events.append(CallArguments(f"{comma}{json_string(name)}: "))
        self._state = self._value_begin
        return True

    def _value_begin(self) -> bool:
        mark = self._marks.value.begin
        if mark:
            text = self._rest.lstrip()
            if mark.startswith(text) and text != mark:
                return len(self._rest) - len(text) > MAX_SPACE and self._break()
            if not text.startswith(mark):
                return self._break()
            self._rest = text.removeprefix(mark)
        self._value, self._started = "", False
        self._streams = is_text(self._types)
        self._state = self._in_value
        return True

    def _in_value(self) -> bool:
        end = self._marks.value.end
        at = self._rest.find(end)
        if at >= 0:
            self._add(self._rest[:at])
            self._rest = self._rest[at + len(end) :]
            self._end_value()
            self._state = self._between
            return True
        keep = overlap(self._rest, end)
        self._add(self._rest[: len(self._rest) - keep])
        self._rest = self._rest[len(self._rest) - keep :]
        return False

    # --- a value

    def _add(self, text: str) -> None:
        self._value += text
        if len(self._value) > MAX_HELD:
            self._streams = True
        if self._streams:
            self._hand_on(ended=False)

    def _hand_on(self, *, ended: bool) -> None:
        """Says what of a string is certain: the padding at its end isn't."""
        padding = self._marks.padding
        if not self._started:
            if not ended and len(self._value) < len(padding):
                return
            self._started = True
            self._value = self._value.removeprefix(padding)
            self._events.append(CallArguments('"'))
        if ended:
            text = self._value.removesuffix(padding) if padding else self._value
            self._value = ""
        else:
            certain = len(self._value) - len(padding)
            text, self._value = self._value[: max(certain, 0)], self._value[max(certain, 0) :]
        self._events.append(CallArguments(json_string(text)[1:-1]))

    def _end_value(self) -> None:
        if self._streams:
            self._hand_on(ended=True)
            self._events.append(CallArguments('"'))
            return
        padding = self._marks.padding
        text = self._value.removeprefix(padding)
        text = text.removesuffix(padding) if padding else text
        self._events.append(CallArguments(typed(text, self._types)))

    # --- the call

    def _skip(self, length: int) -> None:
        if not self.begun:
            self._read += self._rest[:length]
        self._rest = self._rest[length:]

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            self._read = ""
            self._events += [self._call, CallArguments("{")]

    def _close(self) -> None:
        self.done = True
        self._events.append(CallArguments("}"))

    def _break(self) -> bool:
        """What follows is no key. A call that has begun ends with the values that it has."""
        self.broken = True
        if self.begun:
            self._events.append(CallArguments("}"))
        return False
