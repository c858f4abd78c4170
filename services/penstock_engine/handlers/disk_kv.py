"""What a worker says of its tier on disk, and what it does to those who wait for it."""

from __future__ import annotations

from penstock.protocol.from_worker import FetchedKV, FoundKV
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.entry import enter
from penstock_engine.request.request import Request


class DiskKVHandler:
    """Lets sequences go when what they wait for has come, or isn't going to."""

    def __init__(self, state: CoreState) -> None:
        self._state = state

    def answered(self, message: FoundKV | FetchedKV) -> None:
        """Raises UnfitAnswer for one that nobody asked for."""
        disk = self._state.disk_kv
        if isinstance(message, FoundKV):
            self._let_go(disk.found(message))
        else:
            self._let_go(disk.fetched(message))

    def worker_lost(self) -> None:
        """Nothing comes any more."""
        for request in self._state.disk_kv.worker_lost():
            self._let_go(request)

    def _let_go(self, request: Request | None) -> None:
        for sequence in [] if request is None else self._state.remote_kv.arrived(request):
            enter(self._state, sequence)
