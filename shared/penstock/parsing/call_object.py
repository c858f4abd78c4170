"""One tool call, written as a JSON object: {"name": "f", "arguments": {…}}.

Once its name is known and its arguments have begun, it is a call, and the arguments are passed on
as they come.  Until then it may still turn out to be something else, and its text is kept.
"""

from __future__ import annotations

import json
import re
from typing import Literal

from penstock.parsing.interface import CallArguments, CallBegin, Event
from penstock.parsing.json_scanner import PLAIN, JsonScanner, ScanState, escaped

MAX_HELD = 65_536
"""Characters that may be read before it is a call."""
MAX_NAME = 256

NAMES = ("name",)
ARGUMENTS = ("arguments", "parameters")
MAX_ENTRY = 512
"""Characters of an entry's brace and key."""
_ENTRY = re.compile(
    r'\s*\{\s*"((?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)"\s*:\s*(?=\{)'
)
_STRINGS = (ScanState.STRING, ScanState.ESCAPE, ScanState.HEX)


class CallObject:
    """begun: it is a call.  held: all that was read, as long as it isn't.  done, broken: nothing
    more may be pushed.

    known: names that calls may have; None: any.  needs_arguments: an object without them is none.
    keys: of its members, for the name, then for the arguments.
    """

    def __init__(
        self,
        known: frozenset[str] | None,
        *,
        needs_arguments: bool,
        keys: tuple[tuple[str, ...], tuple[str, ...]] = (NAMES, ARGUMENTS),
    ) -> None:
        self._known = known
        self._names, self._arguments_keys = keys
        self._needs_arguments = needs_arguments
        self._scanner = JsonScanner(lenient=True)
        self._raw: list[str] = []
        self._length = 0
        self._events: list[Event] = []
        self._role: Literal["name", "arguments", "other"] = "other"
        self._in_value = False
        self._key: list[str] | None = None
        self._value: list[str] = []
        self._name: str | None = None
        self._arguments: str | None = None
        self.left = ""
        self.begun = self.done = self.broken = False

    @property
    def held(self) -> str:
        return "" if self.begun else "".join(self._raw)

    def end(self) -> None:
        """The text has ended."""

    def take(self) -> list[Event]:
        """Returns the events that have become certain since the last call."""
        events, self._events = self._events, []
        return events

    def push(self, text: str) -> int:
        """Reads on. Returns how many characters belong to it: the one at which it breaks doesn't,
        unless that ends a name or arguments that won't do."""
        at, end = 0, len(text)
        while at < end and not (self.done or self.broken):
            if not self.begun and self._length >= MAX_HELD:
                self.broken = True
                break
            run = self._run(text, at)
            if not run:
                break
            at += len(run)
        return at

    def _run(self, text: str, at: int) -> str:
        """Reads one character, or the plain part of a string. Empty when it breaks there."""
        scanner = self._scanner
        if scanner.in_string:
            match = PLAIN.match(text, at)
            if match is not None:
                run = match[0]
                if not self.begun:
                    run = run[: MAX_HELD - self._length]
                self._read(run)
                return run
        letter = text[at]
        before, depth = scanner.state, scanner.depth
        scanner.step(letter)
        if scanner.state is ScanState.BROKEN or (depth == 0 and scanner.depth and letter != "{"):
            self.broken = True
            return ""
        self._follow(before, depth, letter)
        return letter

    def _follow(self, before: ScanState, depth: int, letter: str) -> None:
        """A character was read in the state `before`, at `depth`."""
        now = self._scanner.state
        if (
            depth == 1
            and before in (ScanState.KEY, ScanState.FIRST_KEY)
            and now is ScanState.STRING
        ):
            self._read(letter)
            self._key = []
        elif self._key is not None and now is ScanState.COLON and before in _STRINGS:
            self._read(letter, collect=False)
            self._end_key()
        elif depth == 1 and before is ScanState.VALUE and now is not ScanState.VALUE:
            self._begin_value(letter)
        elif depth == 1 and before is ScanState.NUMBER and now is not ScanState.NUMBER:
            self._in_value = False  # This character isn't the number's.
            self._read(letter)
        elif before is ScanState.STRING and letter < " ":
            self._read(escaped(letter), raw=letter)
        else:
            self._read(letter)
        if self._in_value and now is ScanState.AFTER and self._scanner.depth == 1:
            self._end_value()
        if now is ScanState.DONE and not self.broken:
            self._end()

    def _read(self, run: str, *, collect: bool = True, raw: str = "") -> None:
        """raw: what the model wrote, where that is something else."""
        self._length += len(run)
        if not self.begun:
            self._raw.append(raw or run)
        if not collect:
            return
        if self._key is not None:
            self._key.append(run)
        elif self._in_value and self._role == "arguments" and self.begun:
            self._events.append(CallArguments(run))
        elif self._in_value and self._role != "other":
            self._value.append(run)

    def _end_key(self) -> None:
        name = _string("".join(self._key or ()))
        self._key = None
        if name in self._names:
            self._role = "name"
            self.broken = self._name is not None
        elif name in self._arguments_keys:
            self._role = "arguments"
            self.broken = self.begun or self._arguments is not None
        else:
            self._role = "other"

    def _begin_value(self, letter: str) -> None:
        allowed = {"name": '"', "arguments": '{"n', "other": letter}[self._role]
        self._value = []
        self._in_value = True
        if letter not in allowed:
            self.broken = True
        elif self._role == "arguments" and letter == "{" and self._name is not None:
            self._begin()
        self._read(letter)

    def _end_value(self) -> None:
        self._in_value = False
        text = "".join(self._value)
        if self._role == "name":
            self._end_name(_string(text[1:-1]))
        elif self._role == "arguments" and not self.begun:
            self._end_arguments(text)

    def _end_name(self, name: str) -> None:
        if not 1 <= len(name) <= MAX_NAME or (self._known is not None and name not in self._known):
            self.broken = True
            return
        self._name = name
        if self._arguments is not None:
            self._begin()

    def _end_arguments(self, text: str) -> None:
        """Arguments that came before the name, or as null, or as JSON inside of a string."""
        arguments = "{}" if text == "null" else text
        if text.startswith('"'):
            arguments = _string(text[1:-1]).strip() or "{}"
            if not is_object(arguments):
                self.broken = True
                return
        self._arguments = arguments
        if self._name is not None:
            self._begin()

    def _begin(self) -> None:
        self.begun = True
        self._raw.clear()
        self._events.append(CallBegin(self._name or ""))
        if self._arguments is not None:
            self._events.append(CallArguments(self._arguments))

    def _end(self) -> None:
        if not self.begun and (self._name is None or self._needs_arguments):
            self.broken = True
            return
        if not self.begun:
            self._arguments = "{}"
            self._begin()
        self.done = True


class ArgumentsObject:
    """The arguments of a call whose name stands before them; the same interface."""

    def __init__(self, begin: CallBegin) -> None:
        self._begin = begin
        self._scanner = JsonScanner(lenient=True)
        self._events: list[Event] = []
        self.left = ""
        self.begun = self.done = self.broken = False
        self.held = ""

    def end(self) -> None:
        """The text has ended."""

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def push(self, text: str) -> int:
        scanner, said = self._scanner, 0
        for at, letter in enumerate(text):
            depth, in_string = scanner.depth, scanner.in_string
            scanner.step(letter)
            if scanner.state is ScanState.BROKEN or (not depth and letter != "{"):
                self.broken = True
                self._hand_on(text[said:at])
                return at
            if in_string and letter < " ":
                self._hand_on(text[said:at] + escaped(letter))
                said = at + 1
            if scanner.state is ScanState.DONE:
                self.done = True
                self._hand_on(text[said : at + 1])
                return at + 1
        self._hand_on(text[said:])
        return len(text)

    def _hand_on(self, text: str) -> None:
        if text and not self.begun:
            self.begun = True
            self._events.append(self._begin)
        self._events.append(CallArguments(text))


class CallEntry:
    """A call whose name is the one key of an object: {"f": {…}}; the same interface.

    known: names that calls may have; None: any.
    """

    def __init__(self, known: frozenset[str] | None) -> None:
        self._known = known
        self._rest = ""
        self._inner: ArgumentsObject | None = None
        self._events: list[Event] = []
        self.left = ""
        self.begun = self.done = self.broken = False

    @property
    def held(self) -> str:
        return ""  # What it doesn't read is left.

    def end(self) -> None:
        """The text has ended."""
        if not (self.begun or self.broken):
            self._leave(broken=True)

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def push(self, text: str) -> int:
        self._rest += text
        if self._inner is None:
            self._open()
        if self._inner is not None and not self._inner.done:
            self._rest = self._rest[self._inner.push(self._rest) :]
            self._events += self._inner.take()
            if self._inner.broken:
                self._leave(broken=True)
        if self._inner is not None and self._inner.done:
            self._close()
        return len(text)

    def _open(self) -> None:
        match = _ENTRY.match(self._rest[:MAX_ENTRY])
        if match is None:
            if len(self._rest) >= MAX_ENTRY:
                self._leave(broken=True)
            return
        name = _string(match[1])
        if not 1 <= len(name) <= MAX_NAME or (self._known is not None and name not in self._known):
            self._leave(broken=True)
            return
        self._rest = self._rest[match.end() :]
        self._inner = ArgumentsObject(CallBegin(name))
        self.begun = True

    def _close(self) -> None:
        """State after the arguments: reads the end of the call."""
        self._rest = self._rest.lstrip()
        if not self._rest:
            return
        broken = not self._rest.startswith("}")
        self._rest = self._rest.removeprefix("}")
        self._leave(broken=broken)

    def _leave(self, *, broken: bool) -> None:
        self.broken, self.done = broken, not broken
        self.left, self._rest = self._rest, ""


def is_object(text: str) -> bool:
    """Whether a whole text is one JSON object."""
    scanner = JsonScanner()
    for letter in text:
        if scanner.state in (ScanState.DONE, ScanState.BROKEN):
            return False
        scanner.step(letter)
    return scanner.state is ScanState.DONE and text.startswith("{")


def _string(raw: str) -> str:
    """The text of a JSON string, without its quotes; an escape of half a pair becomes `?`."""
    text = json.loads(f'"{raw}"')
    return str(text).encode("utf-8", "replace").decode() if "\\" in raw else str(text)
