"""What the client needs of an open request: where it has been, where it may go, what computes it.

An answer is computed with one fingerprint from its first token to its last, wherever it goes on:
tokens of two would be an answer that no engine core gives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.client.routing import AFFINITY_TOKENS, Blame, RoutingRequest, Why
from penstock.errors import EngineUnavailable, ModelChanged, PenstockError

if TYPE_CHECKING:
    from penstock.client.media import PreparedMedia
    from penstock.media.item_names import PromptMedia
    from penstock.protocol.from_frontend import FromFrontend, Submit
    from penstock.protocol.to_frontend import Pooled, SequenceOutput, Status, Welcome
    from penstock.request.terms import Terms


class Computing(NamedTuple):
    """What an engine core computes with. fingerprint, arithmetic, weights: see Status.  settings:
    see Welcome.bit_settings."""

    fingerprint: str
    arithmetic: tuple[str, ...] = ()
    weights: str | None = None
    settings: dict[str, Any] | None = None

    @classmethod
    def told(
        cls, status: Status, welcome: Welcome | None, before: Computing | None
    ) -> Computing | None:
        """What a Status says; while its worker is away, what was said before."""
        if status.fingerprint is None:
            return before
        known = before is not None and before.fingerprint == status.fingerprint
        return cls(
            status.fingerprint,
            status.arithmetic or (before.arithmetic if known and before else ()),
            status.weights or (before.weights if known and before else None),
            None if welcome is None else welcome.bit_settings,
        )


def fingerprint_name(fingerprint: str, adapter: str = "") -> str:
    """A fingerprint as replies have it. adapter: digest of the one that is applied to the model;
    what is computed depends on both."""
    whole = f"{fingerprint} {adapter}" if adapter else fingerprint
    return "fp_" + hashlib.sha256(whole.encode()).hexdigest()[:12]


def names_of(fingerprints: Iterable[str], adapter: str = "") -> str:
    """Fingerprints for an error message."""
    return ", ".join(sorted({fingerprint_name(each, adapter) for each in fingerprints})) or "none"


class Placement:
    """Where a request has been.

    ask: what it is placed by.  endpoint: of the engine core that had it last. expected: endpoint of
    one that has fetched what it could of the prompt, and why that one was chosen.  held: the only
    fingerprint that it may be computed with; None: any that it begins with.  computing: of the
    engine core that had it last, as far as that has reported it.  refused: another engine core than
    its present one had no room for it.  shared: its answer is computed along with an earlier
    request's. tries: sessions that have ended since it was last answered, each before it answered
    the request's Submit, see `pacing`.
    """

    __slots__ = (
        "ask",
        "computing",
        "endpoint",
        "expected",
        "held",
        "refused",
        "shared",
        "tries",
    )

    def __init__(self, ask: RoutingRequest, held: str | None = None) -> None:
        self.ask = ask
        self.endpoint: str | None = None
        self.expected: tuple[str, Why] | None = None
        self.held = held
        self.computing: Computing | None = None
        self.refused = False
        self.shared = False
        self.tries = 0

    def accepted(self, *, shared: bool) -> None:
        """Notes that an engine core has accepted the request."""
        self.tries, self.shared = 0, shared

    def only(self, *, begun: bool) -> str | None:
        """The only fingerprint that may compute what comes next; None: any. begun: there is some
        output."""
        if self.held is None and begun and self.computing is not None:
            return self.computing.fingerprint
        return self.held

    def placed(self, computing: Computing | None, *, begun: bool) -> bool:
        """Notes what an engine core computes with that has the request. False: not with what it
        must. computing: None: it hasn't reported it yet."""
        if computing is None:
            return True
        if self.only(begun=begun) not in (None, computing.fingerprint):
            return False
        self.computing = computing
        return True


def none_alike(only: str, there: Iterable[str], *, shown: bool) -> PenstockError:
    """Returns the error of a request that no engine core can continue. only: see Placement.  there:
    fingerprints of engine cores that are.  shown: its client may have a part of its answer."""
    template = (
        f"no engine core computes with {fingerprint_name(only)}, as {{}}; there is"
        f" {names_of(there)}"
    )
    if shown:
        return ModelChanged(template.format("this answer's first tokens were computed"))
    return EngineUnavailable(f"{template.format('this request was to be')}; send it again")


def placement_of(
    prompt_token_ids: list[int], terms: Terms, media: PromptMedia | None = None
) -> Placement:
    """Where a request begins that has been nowhere."""
    ask = RoutingRequest(
        prompt_token_ids,
        AFFINITY_TOKENS,
        terms.tenant,
        terms.cache_salt,
        None if media is None else media.media,
        adapter="" if terms.adapter is None else terms.adapter.digest,
        session="" if terms.session is None else terms.session.id,
        meets=terms.shared or terms.claim is not None,
    )
    return Placement(ask, terms.fingerprint)


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
        """Whether there is some output, also of a sequence that has ended."""
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
        """Sends a message. False where there is no session."""
        ...

    def abort(self, request: OpenRequest) -> None:
        """Ends it in the engine core, if that knows it; `forget` has to follow."""
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
