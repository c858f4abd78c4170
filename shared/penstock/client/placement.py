"""An open request's way from engine core to engine core."""

from __future__ import annotations

from typing import Protocol

from penstock.client.blame import Blame
from penstock.client.media import PreparedMedia
from penstock.client.routing import RoutingRequest, Why
from penstock.errors import PenstockError
from penstock.protocol.from_frontend import FromFrontend, Submit
from penstock.protocol.to_frontend import Pooled, SequenceOutput
from penstock.request.terms import Terms


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
