"""An open request's way from engine core to engine core, where it waits for one, and which deaths
of engine cores are held against it."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Protocol

from penstock.client.media import PreparedMedia
from penstock.client.routing import RoutingRequest, Why
from penstock.errors import EngineUnavailable, PenstockError
from penstock.protocol.from_frontend import FromFrontend, Submit
from penstock.protocol.to_frontend import Pooled, SequenceOutput
from penstock.request.terms import Terms

MOST_PENDING = 64
"""Lost engine cores that a request remembers at once, of which nobody knows yet what became."""


class Blame:
    """Deaths of engine cores that are held against one request.  Whether it may be told from a
    bystander is decided here and nowhere else.

    Suspected is only what had entered a step of an engine core and had gained nothing since, when
    the session with it was lost.  A session that ends is not a death yet: it is one when another
    life of an engine core answers at that place, and none when the same life does.  Until then the
    suspicion is pending; where nobody ever comes back there (a name may lead elsewhere), it stays
    so, and harms nobody.

    deaths: as Submit's: those that are certain, since the request last gained something.
    """

    __slots__ = ("_entered", "_pending", "deaths")

    def __init__(self) -> None:
        self.deaths = 0
        self._entered = False
        self._pending: dict[str, str] = {}
        """Boots of lost engine cores, by endpoint."""

    def entered(self) -> None:
        """The engine core that has it says that one of its sequences is in a step."""
        self._entered = True

    def left(self) -> None:
        """Notes that none of the request's sequences is in a step any more: all wait again."""
        self._entered = False

    def gained(self) -> None:
        """Clears the request of all blame: it has got a token, so it is past whatever killed an
        engine core."""
        if self._entered or self._pending or self.deaths:
            self._entered = False
            self._pending.clear()
            self.deaths = 0

    def lost(self, endpoint: str, boot: str | None, *, innocent: bool) -> None:
        """The session that it ran in has ended. boot: of the engine core there; None: not known.
        innocent: it is known that nobody has died of anything that ran."""
        suspected, self._entered = self._entered, False
        if suspected and not innocent and boot and len(self._pending) < MOST_PENDING:
            self._pending[endpoint] = boot

    def answered(self, endpoint: str, boot: str) -> None:
        """An engine core has come at `endpoint`, in the life `boot`."""
        if not self._pending:
            return
        # That life goes on, wherever it was met before.
        self._pending = {place: life for place, life in self._pending.items() if life != boot}
        if self._pending.pop(endpoint, None) is not None:
            self.deaths += 1


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


class Placement:
    """Where a request has been.

    ask: what it is placed by.  endpoint: of the engine core that had it last. expected: endpoint of
    one that has fetched what it could of the prompt, and why that one was chosen.  fingerprint,
    weights: of what made its tokens.  refused: another engine core than its present one had no room
    for it.  tries: sessions that have ended since it was last answered, each before it answered the
    request's Submit, see `pacing`.
    """

    __slots__ = ("ask", "endpoint", "expected", "fingerprint", "refused", "tries", "weights")

    def __init__(self, ask: RoutingRequest) -> None:
        self.ask = ask
        self.endpoint: str | None = None
        self.expected: tuple[str, Why] | None = None
        self.fingerprint: str | None = None
        self.weights: str | None = None
        self.refused = False
        self.tries = 0


class OpenRequest(Protocol):
    """What the client needs of a Generation or PoolRequest.

    key: its number where it is.  holder: the session or waiting_room that it is in.
    """

    key: int
    holder: Holder
    placement: Placement

    @property
    def media(self) -> PreparedMedia | None:
        """What engine cores may ask for, until it is over; None for text alone."""
        ...

    @property
    def blame(self) -> Blame: ...

    @property
    def name(self) -> str: ...

    @property
    def terms(self) -> Terms: ...

    @property
    def finished(self) -> bool: ...

    @property
    def open_sequences(self) -> int: ...

    @property
    def carried_tokens(self) -> int:
        """Tokens that its submission holds: the prompt's and the emitted ones."""
        ...

    @property
    def begun(self) -> bool:
        """Whether there is some output of a sequence that is open."""
        ...

    @property
    def successor(self) -> OpenRequest:
        """What is submitted again if the request's engine core is lost: itself, unless it went
        ahead of another."""
        ...

    def submission(self) -> Submit: ...

    def take(self, output: SequenceOutput) -> None: ...

    def take_accepted(self) -> None: ...

    def take_entered(self) -> None: ...

    def take_prepared(self) -> None: ...

    def take_pooled(self, message: Pooled) -> None: ...

    def abort(self) -> None: ...

    def expire(self) -> None: ...

    def fail(self, error: PenstockError) -> None: ...


class Holder(Protocol):
    """The place of an open request: an engine core's session, or a line of requests that wait for
    one."""

    def send(self, message: FromFrontend) -> bool:
        """False where there is nobody to send to."""
        ...

    def abort(self, request: OpenRequest) -> None:
        """Ends it in the engine core, if that has heard of it; `forget` has to follow."""
        ...

    def forget(self, request: OpenRequest) -> None:
        """The request is over."""
        ...


class Nowhere:
    """The place of a request that has not been given one yet."""

    def send(self, message: FromFrontend) -> bool:
        return False

    def abort(self, request: OpenRequest) -> None:
        pass

    def forget(self, request: OpenRequest) -> None:
        pass


NOWHERE = Nowhere()
