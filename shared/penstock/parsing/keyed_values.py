"""Arguments as keys and values with marks of their own, as JSON: <parameter=city>Paris</parameter>.

A value whose schema admits nothing but strings is passed on as it comes; any other when it is
whole, since it takes all of it to say what it is.
"""

from __future__ import annotations

import re
from typing import Any

from penstock.parsing.call_object import MAX_HELD, ArgumentsObject
from penstock.parsing.call_text import MAX_SPACE, overlap
from penstock.parsing.format import KeyedValues, ValueKind
from penstock.parsing.interface import CallArguments, CallBegin, Event
from penstock.parsing.values import branch, is_text, json_string, parameter, typed, types_of

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
        """Text that was read before it was known to be a call."""
        self._state = self._between
        self._events: list[Event] = []
        self._keys: set[str] = set()
        self._types: frozenset[str] | None = None
        self._kind: ValueKind = "schema"
        self._value = ""
        self._streams = self._started = False
        self._key_text = self._end = ""
        """Key of the value that is read, as it was written, and what ends the value."""
        self._property: Any = None
        self._object: ArgumentsObject | None = None
        """The arguments, where they are one JSON object."""
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
        """Takes the end of the text. Between values it ends the call too: a model forgot the
        mark."""
        if self.begun and self._state == self._between and not self._rest.strip():
            self._close()

    # States; each returns whether there is more to do.
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
        key, whole = self._marks.key, self._marks.whole
        marks = (*self._ends, key) if whole is None else (*self._ends, key, whole.begin)
        if any(mark.startswith(text) and text != mark for mark in marks):
            return False
        if self._object is None and text.startswith(key):
            self._skip(len(self._rest) - len(text) + len(key))
            self._state = self._key
            return True
        if whole is not None and not self.begun and text.startswith(whole.begin):
            self._skip(len(self._rest) - len(text) + len(whole.begin))
            self._object = ArgumentsObject(self._call)
            self._state = self._in_object
            return True
        return self._break()

    def _in_object(self) -> bool:
        """Reads within an object that is all of the arguments."""
        read = self._object
        if read is None:
            return self._break()
        self._rest = self._rest[read.push(self._rest) :]
        self._events += read.take()
        if read.begun:
            self.begun, self._read = True, ""
        if read.done:
            self._state = self._behind_object
        return self._break() if read.broken else read.done

    def _behind_object(self) -> bool:
        return self._marks.whole is None or self._ends_with(self._marks.whole.end)

    def _ends_with(self, mark: str) -> bool:
        """Reads a mark that must follow; then comes another key, or the end."""
        text = self._rest.lstrip()
        if mark.startswith(text) and text != mark:
            return len(self._rest) - len(text) > MAX_SPACE and self._break()
        if not text.startswith(mark):
            return self._break()
        self._rest = text.removeprefix(mark)
        self._state = self._between
        return True

    def _key(self) -> bool:
        seen = self._rest[:MAX_KEY]
        found = [
            (at, end, kind) for end, kind in self._marks.key_ends if (at := seen.find(end)) >= 0
        ]
        if not found:
            return self._break() if len(seen) == MAX_KEY else False
        at, end, self._kind = min(found)
        written = name = seen[:at].strip()
        self._skip(at + len(end))
        for text, letter in self._marks.escapes:
            name = name.replace(text, letter)
        if not name or name in self._keys or (self._marks.nested and name.startswith("/")):
            return self._break()
        self._begin()
        self._key_text = f"{self._marks.key}{written}{end}"
        self._end = self._marks.value.end.replace("KEY", written)
        self._property = schema = parameter(self._schema, name)
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
        if not self._quotation():
            return False
        self._value, self._started = "", False
        self._streams = is_text(self._types)
        self._state = self._in_value
        return True

    def _quotation(self) -> bool:
        """Reads the mark before a value that is quoted. Returns whether it is known if one is."""
        quoted = self._marks.quoted
        if quoted is None:
            return True
        if quoted.begin.startswith(self._rest) and self._rest != quoted.begin:
            return False
        if self._rest.startswith(quoted.begin):
            self._rest = self._rest.removeprefix(quoted.begin)
            self._end = quoted.end
            self._types = self._types or frozenset({"string"})
        return True

    def _in_value(self) -> bool:
        end = self._end
        at = self._rest.find(end)
        if at >= 0:
            if self._goes_on(self._value + self._rest[:at]):
                self._add(self._rest[: at + len(end)])
                self._rest = self._rest[at + len(end) :]
                return True
            self._add(self._rest[:at])
            self._rest = self._rest[at + len(end) :]
            self._end_value()
            quoted = self._marks.quoted
            self._state = self._behind_quoted if quoted and end == quoted.end else self._between
            return True
        keep = overlap(self._rest, end)
        self._add(self._rest[: len(self._rest) - keep])
        self._rest = self._rest[len(self._rest) - keep :]
        return False

    def _goes_on(self, value: str) -> bool:
        """Whether the mark after this ends a value within, of the same key."""
        if not self._marks.nested or self._streams or len(value) > MAX_HELD:
            return False
        return value.count(self._key_text) > value.count(self._end)

    def _behind_quoted(self) -> bool:
        return self._ends_with(self._marks.value.end)

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
        said = typed(text, self._types)
        if self._marks.nested:
            said = nested_json(text, self._marks, self._property, self._schema)
        self._events.append(CallArguments(said))

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
        self._events.append(CallArguments("" if self._object else "}"))

    def _break(self) -> bool:
        """What follows is no key. A call that has begun ends with the values that it has."""
        self.broken = True
        if self.begun and self._object is None:
            self._events.append(CallArguments("}"))
        return False


# Values that are keys and values themselves, each with marks, as JSON text:
#
# <place><city>Paris</city><tags><item>a</item><item>b</item></tags></place>

MAX_DEPTH = 64
ITEM = "item"
"""The key of a list's values."""
_EMPTY = (("array", "[]"), ("object", "{}"))


def nested_json(text: str, marks: KeyedValues, schema: Any, root: Any, depth: int = 0) -> str:
    """A value's text as JSON. What isn't made of keys and values as it should be is one value, of
    the types that its schema allows.

    root: what the schema's references are in.
    """
    types = types_of(schema, root)
    members = None if is_text(types) or depth == MAX_DEPTH else _members(text, marks)
    if members is None:
        return typed(text, types)
    if not members and types and "string" not in types:
        return next((said for kind, said in _EMPTY if kind in types), typed(text, types))
    if members and _is_list(members, types):
        items = (branch(schema, root, "array") or {}).get("items")
        values = [nested_json(value, marks, items, root, depth + 1) for _, value in members]
        return f"[{', '.join(values)}]"
    if len(dict(members)) < len(members) or not members:
        return typed(text, types)
    whole = branch(schema, root, "object")
    values = [
        f"{json_string(key)}: {nested_json(value, marks, parameter(whole, key), root, depth + 1)}"
        for key, value in members
    ]
    return f"{{{', '.join(values)}}}"


def _is_list(members: list[tuple[str, str]], types: frozenset[str] | None) -> bool:
    return (types is None or "array" in types) and all(key == ITEM for key, _ in members)


def _members(text: str, marks: KeyedValues) -> list[tuple[str, str]] | None:
    """The keys and the texts of their values; None where there is anything else."""
    key_end, _ = marks.key_ends[0]
    found, rest = [], text.lstrip()
    while rest:
        key, mark, value = rest.removeprefix(marks.key).partition(key_end)
        begin, end = f"{marks.key}{key}{key_end}", marks.value.end.replace("KEY", key)
        if not rest.startswith(begin) or not mark or not 1 <= len(key) <= MAX_KEY:
            return None
        at = _ending(value, begin, end)
        if at is None:
            return None
        found.append((key, value[:at]))
        rest = value[at + len(end) :].lstrip()
    return found


def _ending(text: str, begin: str, end: str) -> int | None:
    """Returns the place of the mark that ends what has begun; the same may begin and end within.
    None if it isn't there."""
    depth = 0
    for match in re.finditer(f"({re.escape(begin)})|{re.escape(end)}", text):
        if match[1] is None and depth == 0:
            return match.start()
        depth += -1 if match[1] is None else 1
    return None
