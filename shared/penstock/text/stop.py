"""Where texts end that come in tokens: at stop strings, which may span any number of them, and at
lines that are indented less."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import InvalidRequest


class StopMatcher:
    """Finds the first stop string to be complete in a text that comes in pieces.

    An automaton after Aho and Corasick (1975): its state is the longest suffix of the text so far
    that begins some stop string, so that suffix is exactly what must be held back.  Each
    character costs constant time on average, however the text is cut.

    The match is the one that ends first; of several that end there, the longest.  What follows
    can't change that, so the result doesn't depend on how the text was cut into pieces.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if not strings or not all(strings):
            raise InvalidRequest("a stop string must have at least one character", param="stop")
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [""]
        for string in strings:
            self._add(string)
        self._fallback = [0] * len(self._next)
        self._link()
        self._first = frozenset(self._next[0])
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """What may be shown now, and the stop string that ended the text if one did.

        Held text comes with a later push or with finish. After a match nothing may be pushed.
        """
        if not self._state and self._first.isdisjoint(text):
            return text, None
        steps, fallback, matches = self._next, self._fallback, self._match
        state = self._state
        for position, letter in enumerate(text, start=1):
            while state and letter not in steps[state]:
                state = fallback[state]
            state = steps[state].get(letter, 0)
            if matches[state]:
                whole = self._held + text[:position]
                self._state, self._held = 0, ""
                return whole[: len(whole) - len(matches[state])], matches[state]
        whole = self._held + text
        keep = len(whole) - self._depth[state]
        self._state, self._held = state, whole[keep:]
        return whole[:keep], None

    def finish(self) -> str:
        """What was held back: the text has ended without a match."""
        held, self._state, self._held = self._held, 0, ""
        return held

    def _add(self, string: str) -> None:
        state = 0
        for letter in string:
            following = self._next[state].get(letter)
            if following is None:
                following = len(self._next)
                self._next[state][letter] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append("")
            state = following
        self._match[state] = string

    def _link(self) -> None:
        """For each state, breadth first: the state of its longest proper suffix, and the match
        that it inherits from there if it has none of its own."""
        order = list(self._next[0].values())
        for state in order:
            for letter, following in self._next[state].items():
                order.append(following)
                shorter = self._fallback[state]
                while shorter and letter not in self._next[shorter]:
                    shorter = self._fallback[shorter]
                self._fallback[following] = self._next[shorter].get(letter, 0)
                inherited = self._match[self._fallback[following]]
                self._match[following] = self._match[following] or inherited


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
        """Text from the last line feed on, while the indentation behind it isn't known."""

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
