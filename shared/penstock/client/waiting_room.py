"""The place of open requests that have lost their engine core and wait for another."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from penstock.client.routing import OpenRequest
from penstock.errors import EngineUnavailable, PenstockError
from penstock.protocol.from_frontend import FromFrontend


class WaitingRoom:
    """Requests that wait for an engine core. They leave when one comes, when their deadline passes,
    or when patience ends."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, tuple[OpenRequest, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, request: OpenRequest, key: int, now: float) -> None:
        """key: a number that nothing else in here has."""
        request.key, request.holder = key, self
        self._waiting[key] = (request, now)

    def first(self, count: int) -> list[OpenRequest]:
        """The first `count` requests in the order they came, or fewer; they stay until they are
        forgotten."""
        return [request for request, _ in islice(self._waiting.values(), count)]

    def requests(self) -> list[OpenRequest]:
        return [request for request, _ in self._waiting.values()]

    def send(self, message: FromFrontend) -> bool:
        """Sends nothing and returns False: there is no engine core."""
        return False

    def abort(self, request: OpenRequest) -> None:
        """Does nothing: no engine core has the request."""

    def forget(self, request: OpenRequest) -> None:
        """Forgets a request that is over, or that an engine core has taken."""
        self._waiting.pop(request.key, None)

    def fail(self, error: PenstockError) -> None:
        """Ends all of them."""
        for request in self.requests():
            request.fail(error)

    def lose_patience(self, now: float, patience: float) -> None:
        """Ends those whose deadline has passed, or that have waited for `patience` seconds."""
        for request, since in list(self._waiting.values()):
            if request.terms.time_left_ms(now) == 0:
                request.expire()
            elif now - since >= patience:
                request.fail(EngineUnavailable("the engine core was lost and none reconnected"))
