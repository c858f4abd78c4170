"""The running requests of gRPC calls, by the ids that clients gave them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from penstock_gateway.rpc.exchange import AppExchange


class RunningCalls:
    """Calls that one process runs, by their ids. Several requests may have the same id."""

    def __init__(self) -> None:
        self._by_id: dict[str, set[AppExchange]] = defaultdict(set)

    @contextmanager
    def known_as(self, exchange: AppExchange, request_id: str) -> Iterator[None]:
        """While the exchange runs. request_id: empty for one that nobody can abort."""
        if not request_id:
            yield
            return
        self._by_id[request_id].add(exchange)
        try:
            yield
        finally:
            left = self._by_id[request_id]
            left.discard(exchange)
            if not left:
                del self._by_id[request_id]

    def abort(self, request_ids: Iterable[str]) -> int:
        """Ends all that have one of the ids; returns how many those are."""
        found = {each for name in request_ids for each in self._by_id.get(name, ())}
        for exchange in found:
            exchange.abort()
        return len(found)
