"""The place of open requests that have lost their engine core and wait for another."""

from __future__ import annotations

from collections import OrderedDict

from penstock.client.fleet import Fleet
from penstock.client.placement import OpenRequest, none_alike
from penstock.errors import EngineLost, PenstockError
from penstock.process import logs
from penstock.protocol.from_frontend import FromFrontend

log = logs.get(__name__)


class WaitingRoom:
    """Requests that wait for an engine core. They leave when one comes, when their deadline passes,
    when patience ends, or when no engine core is expected that could take them.

    refused: how many ended as no engine core computes as they must be.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._waiting: OrderedDict[int, tuple[OpenRequest, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, request: OpenRequest, key: int, now: float) -> None:
        """key: a number that nothing else in here has."""
        request.key, request.holder = key, self
        self._waiting[key] = (request, now)

    def requests(self) -> list[OpenRequest]:
        """All of them, in the order they came; they stay until they are forgotten."""
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

    def lose_patience(self, fleet: Fleet, now: float, patience: float) -> None:
        """Ends those whose deadline has passed, or that have waited for `patience` seconds."""
        for request, since in list(self._waiting.values()):
            if request.terms.time_left_ms(now) == 0:
                request.expire()
            elif now - since >= patience:
                if fleet.fingerprints() and (only := _only(request)) is not None:
                    self._refuse(request, only, fleet)
                else:
                    request.fail(EngineLost("the engine core was lost and none reconnected"))

    def refuse_hopeless(self, fleet: Fleet, now: float) -> None:
        """Ends those that must be computed with what no engine core has, nor may have soon."""
        hopeless: dict[str, bool] = {}
        for request in self.requests():
            only = _only(request)
            if only is None:
                continue
            if only not in hopeless:
                hopeless[only] = not fleet.may_come(only, now)
            if hopeless[only]:
                self._refuse(request, only, fleet)

    def _refuse(self, request: OpenRequest, only: str, fleet: Fleet) -> None:
        there, claim = fleet.fingerprints(), request.terms.claim
        shown = request.begun or (claim is not None and claim.goes_on)
        self.refused += 1
        log.warning(
            "no engine core computes as before",
            request=request.name,
            before=only,
            now=sorted(there),
        )
        request.fail(none_alike(only, there, shown=shown))


def _only(request: OpenRequest) -> str | None:
    return request.placement.only(begun=request.begun)
