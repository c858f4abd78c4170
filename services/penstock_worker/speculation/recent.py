"""Outputs that have ended, to draft from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from penstock_worker.speculation.matches import SEPARATOR
from penstock_worker.speculation.run_search import RunIndex, run_search

TOKENS = 262_144
"""The tokens that are kept of all scopes together: some 40 MB."""
SCOPE_TOKENS = 65_536
"""The tokens that are kept of one scope."""


class _Generation:
    """Outputs one after another, and where their runs are."""

    def __init__(self, width: int) -> None:
        self.tokens: list[int] = []
        self.index = run_search().index(width, self.tokens)

    def add(self, output: Sequence[int]) -> None:
        self.tokens += [*output, SEPARATOR]
        self.index.extend(len(self.tokens))


class _Scope:
    """The outputs of those who may be drafted from one another: a generation that grows, and the
    one before. When the new one is full, the old one is forgotten as a whole, so nothing is ever
    searched for what is too old."""

    def __init__(self, width: int, tokens: int) -> None:
        self._width = width
        self._room = tokens // 2
        self.generations = [_Generation(width)]

    @property
    def size(self) -> int:
        return sum(len(each.tokens) for each in self.generations)

    def add(self, output: Sequence[int]) -> None:
        output = output[: self._room - 1]
        newest = self.generations[0]
        if len(newest.tokens) + len(output) + 1 > self._room:
            newest = _Generation(self._width)
            self.generations = [newest, *self.generations[:1]]
        newest.add(output)


class RecentOutputs:
    """Recent outputs by scope. The scope that has gone longest without an output is forgotten first
    where there are too many tokens."""

    def __init__(
        self, width: int, *, tokens: int = TOKENS, scope_tokens: int = SCOPE_TOKENS
    ) -> None:
        """`width`: of the shortest run that is looked for. At most `tokens` are kept, and
        `scope_tokens` of one scope, separators included."""
        self._width = width
        self._tokens = tokens
        self._scope_tokens = min(tokens, scope_tokens)
        self._scopes: OrderedDict[bytes, _Scope] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Tokens that are kept."""
        return self._size

    def of(self, scope: bytes) -> list[RunIndex]:
        """Returns the indexes of a scope, the newer one first."""
        held = self._scopes.get(scope)
        return [] if held is None else [each.index for each in held.generations]

    def add(self, scope: bytes, output: Sequence[int]) -> None:
        """Adds an output, with the last tokens before it. The empty scope is nobody's, and nothing
        is kept of it."""
        if not scope or len(output) <= self._width:
            return
        held = self._scopes.pop(scope, None) or _Scope(self._width, self._scope_tokens)
        self._scopes[scope] = held
        before = held.size
        held.add(output)
        self._size += held.size - before
        while self._size > self._tokens:
            _, oldest = self._scopes.popitem(last=False)
            self._size -= oldest.size

    def clear(self) -> None:
        self._scopes.clear()
        self._size = 0
