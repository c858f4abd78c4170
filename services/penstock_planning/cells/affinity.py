"""The gateways' choice of an engine core, fast enough for a thousand of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from penstock.client.routing import (
    LOAD_FACTOR,
    SESSION_LOAD_FACTOR,
    AnEngine,
    PrefixAffinity,
    RoutingRequest,
    Why,
    bound_of,
    prefix_key,
    rendezvous,
    score,
    session_key,
)

MOST_KEYS, MOST_ORDERS = 200_000, 1000
"""Favourites, and whole orders, that are remembered; then all are forgotten."""


class RememberedAffinity(Generic[AnEngine]):
    """Chooses as PrefixAffinity does, and remembers what takes a hash for each engine core to find:
    each key's favourite, and the whole order of prefixes whose favourite was busy.

    engines: may only be changed by `join` and `leave`.
    """

    def __init__(self, engines: Sequence[AnEngine]) -> None:
        self.engines = list(engines)
        self._by_rule = PrefixAffinity()
        self._favourites: dict[bytes, tuple[tuple[bytes, str], AnEngine, int]] = {}
        """For each key the favourite's score, the favourite, and how many had joined by then."""
        self._orders: dict[bytes, list[AnEngine]] = {}
        self._joined: list[AnEngine] = []
        self._there = {id(engine) for engine in self.engines}

    def join(self, engine: AnEngine) -> None:
        """An engine core more."""
        self.engines.append(engine)
        self._joined.append(engine)
        self._there.add(id(engine))
        self._orders.clear()

    def leave(self, engine: AnEngine) -> None:
        """One less."""
        self.engines.remove(engine)
        self._there.discard(id(engine))
        self._orders.clear()

    def choose(self, ask: RoutingRequest, total: int) -> tuple[AnEngine, Why]:
        """Returns what PrefixAffinity would choose of `engines`, and why. There must be an engine
        core.  total: of their loads."""
        engines = self.engines
        key = session_key(ask)
        session = key is not None
        if key is None:
            key = prefix_key(ask, engines[0].block_size)
        if len(engines) == 1 or key is None:
            return self._by_rule.choose(ask, engines)
        bound = bound_of(total, len(engines), SESSION_LOAD_FACTOR if session else LOAD_FACTOR)
        favourite = self._favourite(key)
        if favourite.load < bound:
            return favourite, "session" if session else "prefix"
        if session:
            return self._by_rule.choose(ask, engines)
        return next(each for each in self._order(key) if each.load < bound), "load"

    def _order(self, key: bytes) -> list[AnEngine]:
        order = self._orders.get(key)
        if order is None:
            if len(self._orders) >= MOST_ORDERS:
                self._orders.clear()
            order = self._orders[key] = rendezvous(key, self.engines)
        return order

    def _favourite(self, key: bytes) -> AnEngine:
        """The engine core with the highest score: of those known before, and of those that joined
        since."""
        known = self._favourites.get(key)
        if known is not None and id(known[1]) in self._there:
            if known[2] == len(self._joined):
                return known[1]
            newer = [each for each in self._joined[known[2] :] if id(each) in self._there]
            best = max([(known[0], known[1])] + [(score(key, e), e) for e in newer], key=_first)
        else:
            best = max(((score(key, each), each) for each in self.engines), key=_first)
        if len(self._favourites) >= MOST_KEYS:
            self._favourites.clear()
        self._favourites[key] = (*best, len(self._joined))
        return best[1]


def _first(scored: tuple[tuple[bytes, str], AnEngine]) -> tuple[bytes, str]:
    return scored[0]
