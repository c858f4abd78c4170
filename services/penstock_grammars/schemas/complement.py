"""A regular expression for texts that a `pattern` doesn't match.

Dialects differ in what `\\d`, `\\s`, `.` and `$` match; none of them matches any of the texts.

The pattern becomes a deterministic automaton, its accepting states are exchanged with the others,
and the automaton becomes an expression again by taking out one state after the other (Brzozowski
and McCluskey 1963).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from penstock_grammars.schemas.keywords import Unservable

# A regular expression for all texts but some.

MAX_EXCLUDING = 16_384
"""The characters that the expression may have."""
_ANY = "(?s:.)"


def all_but(texts: Iterable[str]) -> str:
    """In the dialect of `pattern`, anchored. Raises Unservable where it would be too long.

    A text is another where it ends within one of them, or goes on as none of them does.
    """
    whole = set(texts)
    following: dict[str, set[str]] = {"": set()}
    for text in whole:
        for end, character in enumerate(text):
            following.setdefault(text[:end], set()).add(character)
            following.setdefault(text[: end + 1], set())
    options, size = [], 0
    for begin, characters in following.items():
        options.append(literal(begin) + _going_on(sorted(characters), begin not in whole))
        size += len(options[-1])
        if size > MAX_EXCLUDING:
            raise Unservable("the excluded values are too long")
    return f"^(?:{'|'.join(options)})$"


def literal(text: str) -> str:
    """A regular expression for this text."""
    return "".join(map(_character, text))


def _going_on(characters: list[str], may_end: bool) -> str:
    """A pattern of what may follow: anything that begins with another character, or, if the text
    may end here, nothing."""
    first = f"[^{''.join(map(_character, characters))}]" if characters else _ANY
    return f"(?:{first}{_ANY}*)?" if may_end else f"{first}{_ANY}*"


def _character(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{{{ord(character):x}}}"


MAX_STATES = 40
MAX_NODES = 2_000
"""The nodes that the automaton may have before it is made deterministic."""
MAX_CHARACTERS = 8_192
"""The characters that the expression may have."""
_TOP = 0x10FFFF
_MANY = 20
"""Repetitions that are written out."""

Ranges = tuple[tuple[int, int], ...]


def complement(pattern: str) -> str:
    """Returns a pattern, in the same dialect and anchored, of all texts that `pattern` doesn't
    match. Raises Unservable for what isn't plain, or would be too large."""
    try:
        tree = _parser.parse(pattern)
    except Exception:
        raise Unservable(f"what fails the pattern {pattern[:100]} can't be described") from None
    if tree.state.flags & ~re.UNICODE:
        raise Unservable("what fails a pattern with flags can't be described")
    steps = list(tree)
    begins = steps[:1] == [(sre.AT, sre.AT_BEGINNING)]
    ends = steps[-1:] == [(sre.AT, sre.AT_END)]
    automaton = _Automaton(pattern)
    begin, end = automaton.node(), automaton.node()
    first = begin if begins else automaton.any_texts(begin)
    last = automaton.of(steps[begins : len(steps) - ends], first)
    if ends:
        automaton.edge(last, ((10, 10),), end)  # To some, the end may be before a last new line.
    else:
        last = automaton.any_texts(last)
    automaton.free(last, end)
    return _Elimination(automaton.deterministic(begin, end)).expression()


class _Automaton:
    """Nondeterministic. A node's edges: ranges of characters and where they lead."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._edges: list[list[tuple[Ranges, int]]] = []
        self._free: list[list[int]] = []

    def node(self) -> int:
        self._edges.append([])
        self._free.append([])
        if len(self._edges) > MAX_NODES:
            raise Unservable("what fails so large a pattern can't be described")
        return len(self._edges) - 1

    def free(self, start: int, end: int) -> None:
        self._free[start].append(end)

    def edge(self, start: int, ranges: Ranges, end: int) -> None:
        self._edges[start].append((ranges, end))

    def any_texts(self, start: int) -> int:
        """Any text may be between the node and the one that is returned."""
        end = self.node()
        self._edges[end].append((((0, _TOP),), end))
        self.free(start, end)
        return end

    def of(self, steps: Any, start: int) -> int:
        """The node after all that the steps match from `start`."""
        for kind, value in steps:
            start = self._step(kind, value, start)
        return start

    def _step(self, kind: Any, value: Any, start: int) -> int:
        end = self.node()
        if kind in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            self.edge(start, ranges_of(kind, value), end)
        elif kind == sre.BRANCH:
            for each in value[1]:
                self.free(self.of(each, start), end)
        elif kind == sre.SUBPATTERN and not value[1] and not value[2]:
            self.free(self.of(value[3], start), end)
        elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            self.free(self._repeated(value, start), end)
        else:  # An anchor in the middle, a look-around, a reference.
            raise Unservable(f"what fails the pattern {self._pattern[:100]} can't be described")
        return end

    def _repeated(self, value: Any, start: int) -> int:
        least, most, steps = value
        if least > _MANY or (most != sre.MAXREPEAT and most > _MANY):
            raise Unservable("what fails a pattern with so many repetitions can't be described")
        for _ in range(least):
            start = self.of(steps, start)
        if most == sre.MAXREPEAT:
            again = self.node()
            self.free(start, again)
            self.free(self.of(steps, again), again)
            return again
        end = self.node()
        self.free(start, end)
        for _ in range(most - least):
            start = self.of(steps, start)
            self.free(start, end)
        return end

    def deterministic(self, begin: int, end: int) -> _Deterministic:
        letters = list(_letters(ranges for edges in self._edges for ranges, _ in edges))
        states: dict[frozenset[int], int] = {}
        moves: list[dict[int, int]] = []
        accepting: set[int] = set()
        waiting = [self._closure({begin})]
        states[waiting[0]] = 0
        while waiting:
            nodes = waiting.pop()
            number = states[nodes]
            if end in nodes:
                accepting.add(number)
            while len(moves) <= number:
                moves.append({})
            for at, (low, _) in enumerate(letters):
                reached = {
                    to for node in nodes for ranges, to in self._edges[node] if has(ranges, low)
                }
                target = self._closure(reached)
                if target not in states:
                    states[target] = len(states)
                    waiting.append(target)
                    if len(states) > MAX_STATES:
                        raise Unservable("what fails so large a pattern can't be described")
                moves[number][at] = states[target]
        while len(moves) < len(states):
            moves.append({})
        return _smallest(_Deterministic(letters, moves, accepting))

    def _closure(self, nodes: set[int]) -> frozenset[int]:
        found, stack = set(nodes), list(nodes)
        while stack:
            for each in self._free[stack.pop()]:
                if each not in found:
                    found.add(each)
                    stack.append(each)
        return frozenset(found)


class _Deterministic(NamedTuple):
    """letters: ranges of characters that nothing tells apart.  moves: of each state, by letter."""

    letters: list[tuple[int, int]]
    moves: list[dict[int, int]]
    accepting: set[int]


def _smallest(automaton: _Deterministic) -> _Deterministic:
    """Returns the automaton with one state for all that nothing tells apart; the first one is 0
    still (Moore 1956)."""
    kinds = [int(state in automaton.accepting) for state in range(len(automaton.moves))]
    while True:
        seen: dict[tuple[int, ...], int] = {}
        finer = []
        for state, targets in enumerate(automaton.moves):
            key = (kinds[state], *(kinds[targets[at]] for at in range(len(automaton.letters))))
            finer.append(seen.setdefault(key, len(seen)))
        if len(seen) == len(set(kinds)):
            break
        kinds = finer
    moves: list[dict[int, int]] = [{} for _ in seen]
    for state, targets in enumerate(automaton.moves):
        moves[finer[state]] = {at: finer[to] for at, to in targets.items()}
    return _Deterministic(automaton.letters, moves, {finer[each] for each in automaton.accepting})


class _Elimination:
    """Takes out all states between a new first and a new last one."""

    def __init__(self, automaton: _Deterministic) -> None:
        self._first, self._last = -1, -2
        self._paths: dict[int, dict[int, str]] = {self._first: {0: ""}, self._last: {}}
        for state, moves in enumerate(automaton.moves):
            by_target: dict[int, list[tuple[int, int]]] = {}
            for letter, target in moves.items():
                by_target.setdefault(target, []).append(automaton.letters[letter])
            self._paths[state] = {to: _class(ranges) for to, ranges in by_target.items()}
            if state not in automaton.accepting:
                self._paths[state][self._last] = ""

    def expression(self) -> str:
        while len(self._paths) > 2:
            self._take_out(min((s for s in self._paths if s >= 0), key=self._cost))
        found = self._paths[self._first].get(self._last)
        if found is None:
            return r"[^\s\S]"
        if len(found) > MAX_CHARACTERS:
            raise Unservable("what fails such a pattern is too long to describe")
        return f"^(?:{found})$"

    def _cost(self, state: int) -> int:
        before = [paths[state] for paths in self._paths.values() if state in paths]
        return len(before) * sum(map(len, self._paths[state].values())) + sum(map(len, before))

    def _take_out(self, state: int) -> None:
        paths = self._paths.pop(state)
        loop = paths.pop(state, None)
        again = "" if loop is None else f"(?:{loop})*"
        for others in self._paths.values():
            before = others.pop(state, None)
            if before is None:
                continue
            for target, behind in paths.items():
                made = f"{before}{again}{behind}"
                known = others.get(target)
                others[target] = made if known is None else f"(?:{known}|{made})"
                if len(others[target]) > 8 * MAX_CHARACTERS:
                    raise Unservable("what fails such a pattern is too long to describe")


def _letters(all_ranges: Iterator[Ranges]) -> Iterator[tuple[int, int]]:
    """Yields ranges that have all characters but NUL (see patterns), cut wherever a given range
    begins or ends."""
    cuts = {1, _TOP + 1}
    for ranges in all_ranges:
        for low, high in ranges:
            cuts |= {max(low, 1), max(high + 1, 1)}
    ordered = sorted(cuts)
    for low, above in itertools.pairwise(ordered):
        yield low, above - 1


def has(ranges: Ranges, character: int) -> bool:
    return any(low <= character <= high for low, high in ranges)


def ranges_of(kind: Any, value: Any) -> Ranges:
    """Returns the ranges of all characters that it matches in some dialect."""
    if kind == sre.LITERAL:
        return ((value, value),)
    if kind == sre.NOT_LITERAL:
        return _others(((value, value),))
    if kind == sre.ANY:
        return ((0, _TOP),)
    negated = any(part == sre.NEGATE for part, _ in value)
    found: list[tuple[int, int]] = []
    for part, said in value:
        match part:
            case sre.NEGATE:
                pass
            case sre.LITERAL:
                found.append((said, said))
            case sre.RANGE:
                found.append(said)
            case sre.CATEGORY if said in _ASCII:
                found += _ASCII[said]
                if not negated:  # What is beyond ASCII is a matter of the dialect.
                    found += _DISPUTED
            case _:
                raise Unservable("what fails such a class of characters can't be described")
    return _others(tuple(found)) if negated else tuple(found)


def _others(ranges: Ranges) -> Ranges:
    made: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted(ranges):
        if low > start:
            made.append((start, low - 1))
        start = max(start, high + 1)
    if start <= _TOP:
        made.append((start, _TOP))
    return tuple(made)


def _within_ascii(ranges: Ranges) -> Ranges:
    return tuple((low, min(high, 0x7F)) for low, high in ranges if low <= 0x7F)


_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32))
_NO_SPACE = ((0, 8), (14, 27), (33, 0x7F))
_DISPUTED: Ranges = ((28, 31), (0x80, _TOP))
"""Some take the separators of files, groups, records and units for spaces."""
_ASCII: dict[Any, Ranges] = {
    sre.CATEGORY_DIGIT: _DIGIT,
    sre.CATEGORY_NOT_DIGIT: _within_ascii(_others(_DIGIT)),
    sre.CATEGORY_WORD: _WORD,
    sre.CATEGORY_NOT_WORD: _within_ascii(_others(_WORD)),
    sre.CATEGORY_SPACE: _SPACE,
    sre.CATEGORY_NOT_SPACE: _NO_SPACE,
}
"""What all dialects agree on."""


def _class(ranges: list[tuple[int, int]]) -> str:
    """A class of these characters."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and merged[-1][1] == low - 1:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return f"[{_inside(tuple(merged))}]"


def _inside(ranges: Ranges) -> str:
    def one(code: int) -> str:
        return literal(chr(code)) if code < 128 and chr(code).isalnum() else f"\\x{{{code:x}}}"

    return "".join(one(low) if low == high else f"{one(low)}-{one(high)}" for low, high in ranges)
