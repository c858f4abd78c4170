"""Where texts end that come in tokens: at stop strings, which may span any number of them, and at
lines that are indented less."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from weakref import WeakValueDictionary

from penstock.errors import InvalidRequest


class StopStrings:
    """What StopMatchers look for. One serves all texts that end at the same strings, as those of a
    request with many choices do.

    An automaton after Aho and Corasick (1975). Its states are what the strings begin with: 0 is
    empty, and those of one string mostly follow one another.  A state takes some 20 bytes.
    """

    __slots__ = ("__weakref__", "_strings", "branches", "depth", "fallback", "letters", "matched")

    def __init__(self, strings: tuple[str, ...]) -> None:
        """Raises InvalidRequest for none, and for an empty one."""
        if not strings or not all(strings):
            raise InvalidRequest("a stop string must have at least one character", param="stop")
        self._strings = strings
        self.letters = [""]
        """For each state, the letter that leads to the next one in this list; empty: none does."""
        self.branches: dict[tuple[int, str], int] = {}
        """Where other letters lead, from a state."""
        self.depth = array("i", [0])
        """For each state, the number of letters that lead there."""
        self.matched = array("i", [-1])
        """For each state, the place of the longest string that the text ends with; -1: none."""
        for place, string in enumerate(strings):
            self._add(place, string)
        self.fallback = array("i", bytes(4 * len(self.letters)))
        """For each state, the state of its longest proper suffix."""
        self._link()

    @classmethod
    def of(cls, strings: tuple[str, ...]) -> StopStrings:
        """One that may be in use already. Raises InvalidRequest as the constructor."""
        found = _in_use.get(strings)
        if found is None:
            found = _in_use[strings] = cls(strings)
        return found

    def string(self, state: int) -> str:
        """The string that a state is the end of."""
        return self._strings[self.matched[state]]

    def _child(self, state: int, letter: str) -> int:
        """The state for which the letter stands after this one's; 0: none of the strings."""
        if self.letters[state] == letter:
            return state + 1
        return self.branches.get((state, letter), 0)

    def _add(self, place: int, string: str) -> None:
        state = at = 0
        while at < len(string) and (known := self._child(state, string[at])):
            state, at = known, at + 1
        if at < len(string):
            new = len(self.letters)
            if state + 1 == new:
                self.letters[state] = string[at]
            else:
                self.branches[state, string[at]] = new
            self.letters += [*string[at + 1 :], ""]
            self.depth.extend(range(at + 1, len(string) + 1))
            self.matched.extend([-1] * (len(string) - at))
            state = len(self.letters) - 1
        self.matched[state] = place

    def _link(self) -> None:
        """For each state, the shortest first: the state of its longest proper suffix, and the match
        that it inherits from there if it has none of its own."""
        letters, branches, fallback, matched = (
            self.letters,
            self.branches,
            self.fallback,
            self.matched,
        )
        edges = {following: edge for edge, following in branches.items()}
        for state in sorted(range(1, len(letters)), key=self.depth.__getitem__):
            before, letter = edges[state] if state in edges else (state - 1, letters[state - 1])
            shorter = fallback[before]
            while before:
                if letters[shorter] == letter:
                    fallback[state] = shorter + 1
                    break
                if (following := branches.get((shorter, letter), 0)) or not shorter:
                    fallback[state] = following
                    break
                shorter = fallback[shorter]
            if matched[state] < 0:
                matched[state] = matched[fallback[state]]


_in_use: WeakValueDictionary[tuple[str, ...], StopStrings] = WeakValueDictionary()


class StopMatcher:
    """Finds the first stop string to be complete in a text that comes in pieces.

    Its state is the longest suffix of the text so far that begins some stop string, so that suffix
    is exactly what must be held back.  Each character costs constant time on average, however the
    text is cut.

    The match is the one that ends first; of several that end there, the longest.  What follows
    can't change that, so the result doesn't depend on how the text was cut into pieces.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = StopStrings.of(tuple(strings))
        self._first = frozenset(string[0] for string in strings)
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """What may be shown now, and the stop string that ended the text if one did.

        Held text comes with a later push or with finish. After a match nothing may be pushed.
        """
        if not self._state and self._first.isdisjoint(text):
            return text, None
        strings = self._strings
        letters, branches, fallback = strings.letters, strings.branches, strings.fallback
        matched, state = strings.matched, self._state
        for position, letter in enumerate(text, start=1):
            while letters[state] != letter:
                following = branches.get((state, letter), 0)
                if following or not state:
                    state = following
                    break
                state = fallback[state]
            else:
                state += 1
            if matched[state] >= 0:
                whole, string = self._held + text[:position], strings.string(state)
                self._state, self._held = 0, ""
                return whole[: len(whole) - len(string)], string
        whole = self._held + text
        keep = len(whole) - strings.depth[state]
        self._state, self._held = state, whole[keep:]
        return whole[:keep], None

    def finish(self) -> str:
        """What was held back: the text has ended without a match."""
        held, self._state, self._held = self._held, 0, ""
        return held


class IndentedText:
    """Ends a text that comes in pieces before its first line that begins with fewer than `least`
    spaces and tabs, or at a stop string, whichever the text has first. The line that it begins in
    has any indentation.

    stops: finds the stop strings.
    """

    def __init__(self, least: int, stops: StopMatcher | None = None) -> None:
        self._least = least
        self._stops = stops
        self._held = ""
        """Text from the last line feed on, while the indentation after it isn't known."""

    def push(self, text: str) -> tuple[str, str | None]:
        """What may be shown now, and what ended the text: the stop string; empty: the
        indentation. After an end nothing may be pushed."""
        stop = None
        if self._stops is not None:
            text, stop = self._stops.push(text)
        shown, ended = self._cut(text)
        if ended:
            return shown, ""
        return (shown, None) if stop is None else (shown + self._take(), stop)

    def finish(self) -> str:
        """What was held back: the text has ended."""
        rest, ended = self._cut("" if self._stops is None else self._stops.finish())
        return rest if ended else rest + self._take()

    def _take(self) -> str:
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str) -> tuple[str, bool]:
        text, at = self._take() + text, 0
        while (at := text.find("\n", at)) >= 0:
            begins = at + 1
            at = begins
            while at < len(text) and at - begins < self._least and text[at] in " \t":
                at += 1
            if at - begins >= self._least:
                continue
            if at < len(text):
                return text[: begins - 1], True
            self._held = text[begins - 1 :]
            return text[: begins - 1], False
        return text, False
