"""A model's weights, replaced while the engine core runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import CallCode
from penstock.protocol.from_frontend import ReplaceWeights
from penstock.protocol.to_frontend import Called
from penstock_engine.facts import EngineFacts
from penstock_engine.parts import HasDeadline, Restless, ServesFrontends
from penstock_engine.request.request import Request, Sequence
from penstock_engine.sessions.frontends import Frontends

OF_WEIGHTS = (
    "name",
    "source",
    "weights",
    "samples",
    "digest",
    "contents",
    "generation",
    "has_chat_template",
)
"""Fields of a manifest that may be others: those of the weights, and what stays as it was."""


MOST_DEATHS = 2
"""Deaths of groups that load weights which were promised, and say nothing of why, after which these
are given up."""


@dataclass(frozen=True, slots=True)
class AskedWeights:
    """session: of the front end.  until: when the change must have begun."""

    session: bytes
    message: ReplaceWeights
    until: float


class WeightsChange(HasDeadline, Restless, ServesFrontends):
    """A change of weights, of which there is at most one at a time.

    No request is ever computed by two sets of weights.  So a change begins when no request is open
    of which anything is computed for good; until then no new request starts, unless one that has
    begun waits for a place.  Workers then get the new folder as their group forms anew. If a group
    can't load it, or none forms in time, the trial ends: the next group gets the former weights.

    While the model sleeps, no trial is possible: the change is accepted, and tried when the model
    wakes.
    """

    def __init__(self, frontends: Frontends) -> None:
        self._frontends = frontends
        self.asked: AskedWeights | None = None
        """The replacement that was asked for and has not begun."""
        self.former: EngineFacts | None = None
        """Facts that workers had last, while others are on trial."""
        self._tried: AskedWeights | None = None
        """The request whose answer the trial is; None: it was promised."""
        self._deaths = 0
        self._group_until = math.inf
        """The time until which a group may take to try the new weights."""

    @property
    def answered(self) -> bool:
        """Whether no front end waits for the end of a trial, so that the present facts are kept."""
        return self._tried is None

    @property
    def due(self) -> bool:
        """Whether one can begin as soon as no step is in flight."""
        return self.asked is not None and not any(map(has_begun, self._frontends.requests()))

    def holds_starts(self, queued: Callable[[], Iterable[Sequence]]) -> bool:
        """Whether sequences that haven't begun wait for the new weights. queued: lists the queue,
        which takes time in proportion to its length; a sequence that has begun may be anywhere in
        it."""
        if self.asked is None:
            return False
        return not any(has_begun(sequence.request) for sequence in queued())

    def ask(self, session: bytes, message: ReplaceWeights, now: float) -> bool:
        """A front end's. False: another one is under way."""
        if self.asked is not None or self._tried is not None:
            return False
        self.asked = AskedWeights(session, message, now + message.seconds)
        return True

    def begin(self, facts: EngineFacts, now: float) -> EngineFacts:
        """Returns the facts for workers from now on. The change is on trial until `loaded` or
        `failed`."""
        if self.asked is None:
            return facts
        self._tried, self.asked, self._deaths = self.asked, None, 0
        self._group_until = now + self._tried.message.seconds
        self.former = self.former or facts
        return with_weights(facts, self._tried.message.folder, self._tried.message.model)

    def taken(self) -> None:
        """Notes that a group was sent the weights to load."""
        self._group_until = math.inf

    def lonely(self, now: float) -> str:
        """Returns why the weights aren't tried; empty: they are, or may yet be."""
        if self._tried is None or now < self._group_until:
            return ""
        return f"no worker came to load them within {self._tried.message.seconds:g} s"

    def promise(self) -> bool:
        """The model sleeps. Whether somebody waited for a trial, which then comes later."""
        waited = self._tried is not None
        self._answer(self._tried)
        self._tried, self._group_until = None, math.inf
        return waited

    def loaded(self) -> bool:
        """Notes that the group has loaded its weights. Returns whether that ends a trial."""
        if self.former is None:
            return False
        self._answer(self._tried)
        self.former = self._tried = None
        return True

    def failed(self, reason: str, *, heard: bool) -> EngineFacts | None:
        """Notes that the group is gone that was to load them. Returns the workers' facts if that
        ends the trial. heard: whether it gave a reason; a promised change isn't given up for one
        death."""
        self._deaths += 1
        if self._tried is None and not heard and self._deaths < MOST_DEATHS:
            return None
        former, self.former = self.former, None
        if former is not None:
            why = f"the weights can't be loaded; the previous ones stay: {reason}"
            self._answer(self._tried, "failed", why)
            self._tried, self._group_until = None, math.inf
        return former

    def give_up(self, now: float) -> None:
        """Ends one that could not begin in time."""
        if self.asked is not None and self.asked.until <= now:
            seconds = self.asked.message.seconds
            why = f"running requests didn't end within {seconds:g} s; weights unchanged"
            self._answer(self.asked, "timed_out", why)
            self.asked = None

    @property
    def is_restless(self) -> bool:
        """Whether a replacement waits for requests to end."""
        return self.asked is not None

    def next_deadline(self) -> float:
        """The time at which `give_up` must be called and `lonely` asked, even if no message
        comes."""
        return min(self._group_until, math.inf if self.asked is None else self.asked.until)

    def frontend_ended(self, session: bytes) -> None:
        """A front end is gone; what it asked for doesn't begin any more."""
        if self.asked is not None and self.asked.session == session:
            self.asked = None

    def refuse(self, session: bytes, call: int, code: CallCode, why: str) -> None:
        """Answers a call to replace weights with a refusal; the weights stay."""
        frontend = self._frontends.get(session)
        if frontend is not None:
            frontend.reply(Called(call, 0, 1, code=code, error=why))

    def _answer(self, asked: AskedWeights | None, code: CallCode = "", why: str = "") -> None:
        if asked is not None:
            self.refuse(asked.session, asked.message.call, code, why)


def has_begun(request: Request) -> bool:
    """Whether something of it has been sent, or is known to be its answer."""
    return any(each.emitted or each.finished for each in request.sequences.values())


def with_weights(facts: EngineFacts, folder: str, model: PreparedModel) -> EngineFacts:
    """Facts of the same model with the weights of another folder."""
    changed = msgspec.structs.replace(
        facts.model,
        source=model.source,
        weights=model.weights,
        samples=model.samples,
        digest=model.digest,
    )
    return msgspec.structs.replace(
        facts, folder=folder, model=changed, started_as=facts.started_as or facts.model.digest
    )


def misfit(present: PreparedModel, new: PreparedModel) -> str | None:
    """Why these aren't other weights of the same model; None: they are."""
    for field in PreparedModel.__struct_fields__:
        if field not in OF_WEIGHTS and getattr(present, field) != getattr(new, field):
            return f"its {field} differs from the served model's: {_first(present, new, field)}"
    name = "tokenizer.json"
    if present.contents.get(name) != new.contents.get(name):
        return "its tokenizer differs from the served model's"
    return None


def _first(present: PreparedModel, new: PreparedModel, field: str) -> str:
    """The first difference, in words."""
    one, other = (msgspec.to_builtins(getattr(each, field)) for each in (present, new))
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                return f"{key} is {str(other.get(key))[:80]}, not {str(one.get(key))[:80]}"
    return f"{str(other)[:80]}, not {str(one)[:80]}"
