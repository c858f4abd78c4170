"""What the formats of calls share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from penstock.parsing.call_object import CallObject
from penstock.parsing.interface import Content, Event, ScanState, WalkingParser, merged

MAX_SPACE = 1024
"""Characters of whitespace and marks that are held back, in wait for a call."""


class Item(Protocol):
    """Reads one call. begun: it is a call.  held: all that was read, as long as it isn't.  done,
    broken: nothing more may be pushed.  left: what was read and then found not to belong to it."""

    left: str
    begun: bool
    done: bool
    broken: bool

    @property
    def held(self) -> str: ...

    def push(self, text: str) -> int:
        """Reads on. Returns how many characters belong to it."""

    def end(self) -> None:
        """The text has ended."""

    def take(self) -> list[Event]:
        """Returns the events that have become certain since the last call."""


class CallText(WalkingParser):
    """`_prefix` is text that was dealt with, but is content unless a call comes of it.

    tools: names of the functions that the request offers.
    """

    def __init__(self, tools: Collection[str]) -> None:
        super().__init__(self._start)
        self.tools = frozenset(tools)
        self._prefix = ""
        self._object: Item | None = None
        self._after_object: ScanState = self._start

    def finish(self) -> list[Event]:
        events = self._walk(ended=True)
        left = self._prefix + self._rest
        self._prefix = self._rest = ""
        return merged([*events, Content(left)])

    @property
    def held(self) -> int:
        inside = 0 if self._object is None else len(self._object.held)
        return len(self._prefix) + inside + len(self._rest)

    def _start(self, ended: bool) -> bool:
        """State at the beginning of the text."""
        raise NotImplementedError

    def _content(self, ended: bool) -> bool:
        """Content to the end; formats with marks look for them here."""
        self._say(self._rest)
        self._rest = ""
        return False

    def _say(self, text: str) -> None:
        if text:
            self._events.append(Content(text))

    def _eat(self, length: int) -> None:
        """Moves text from the rest to the prefix."""
        self._prefix += self._rest[:length]
        self._rest = self._rest[length:]

    def _eat_space(self) -> bool | None:
        """Whitespace joins the prefix. None: something else follows. Else what the state returns:
        there may be more to come, or there was more than is waited for, and no call comes of it."""
        self._eat(len(self._rest) - len(self._rest.lstrip()))
        if len(self._prefix) > MAX_SPACE:
            return self._give_back()
        return None if self._rest else False

    def _give_back(self) -> bool:
        """Gives text back that turned out to be no call: the prefix is content, and what follows
        may be."""
        self._say(self._prefix)
        self._prefix = ""
        return self._go(self._content)

    def _open(self, item: Item, then: ScanState) -> bool:
        """A call begins here, it seems. then: the state when it is over."""
        self._object, self._after_object = item, then
        return self._go(self._in_object)

    def _in_object(self, ended: bool) -> bool:
        item = self._object
        if item is None:
            return self._go(self._content)
        used = item.push(self._rest)
        self._rest = self._rest[used:]
        if ended:
            item.end()
        self._rest = item.left + self._rest
        self._events += item.take()
        if item.begun:
            self._prefix = ""
        if not (item.done or item.broken or ended):
            return False
        self._prefix += item.held
        self._object = None
        return self._go(self._after_object) if item.done else self._give_back()

    def _item(self, ended: bool) -> bool:
        if (stop := self._eat_space()) is not None:
            return stop
        item = self._listed()
        return self._give_back() if item is None else self._open(item, self._comma)

    def _comma(self, ended: bool) -> bool:
        if (stop := self._eat_space()) is not None:
            return stop
        if self._rest.startswith(","):
            self._eat(1)
            return self._go(self._item)
        if self._rest.startswith("]"):
            self._rest = self._rest[1:]
            self._prefix = ""
            return self._go(self._after_list)
        return self._give_back()

    def _listed(self) -> Item | None:
        """What reads the item that begins here; None: nothing does."""
        if not self._rest.startswith("{"):
            return None
        return CallObject(self.tools, needs_arguments=True)

    def _after_list(self, ended: bool) -> bool:
        return self._go(self._content)


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of the text that begins the mark, and isn't all of it."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
