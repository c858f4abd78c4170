"""Features of scheduling: what some models and settings need in addition to a step's budget, slots
and KV blocks.

The state has the ones that its model and settings need, in one order, and each is asked only at the
hooks that it overrides: a step costs nothing for a feature that isn't there. The order is that of
`CoreState.scheduler_features`, and counts: a sequence that waits for an adapter asks for no media
meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.request.step_in_flight import PlannedMedia


class SchedulerFeature:
    """The hooks of a feature, which do nothing by default. A subclass overrides those that it
    needs."""

    __slots__ = ()

    def admits(self, sequence: Sequence) -> bool:
        """Whether the head of the queue may start, wherever. If not, it has been taken out of the
        queue, and comes back when it may."""
        return True

    def may_start(self, sequence: Sequence, computed: int) -> bool:
        """Whether the head of the queue may start after so many tokens; otherwise as `admits`."""
        return True

    def begins(self, sequence: Sequence) -> bool:
        """Whether a sequence that may compute nothing yet may start all the same, as `end` has
        found: what it waits for goes on in steps."""
        return False

    def not_started(self, sequence: Sequence) -> None:
        """Called when a sequence could not start, because it may compute nothing in this step."""

    def occupied(self, sequence: Sequence) -> None:
        """Called when the sequence has got a slot."""

    def started(self, sequence: Sequence, computed: int) -> None:
        """Called when the sequence has a slot, and the KV of so many tokens."""

    def begin_step(self) -> None:
        """A plan is begun."""

    def encodes(self) -> bool:
        """Whether the plan that is begun is one even without tokens."""
        return False

    def end(self, sequence: Sequence, start: int, end: int) -> int:
        """How far tokens [start, end) may be computed in this step; at least `start`. Prepares for
        their being computed."""
        return end

    def least(self, sequence: Sequence, start: int) -> int:
        """How many of its tokens from `start` on have to be computed in one step, at least."""
        return 1

    def take_cost(self, sequence: Sequence) -> int:
        """Returns the tokens that count as computed for the sequence in addition to its own, since
        the last call."""
        return 0

    def unscheduled(self, sequence: Sequence) -> None:
        """Called when a running sequence gets no tokens in this step: takes back what `end` has
        prepared for them."""

    def fill(self, builder: StepBuilder) -> None:
        """Adds something to a step that would be empty otherwise."""

    def take_media(self) -> PlannedMedia:
        """What the plan that is made now tells workers. At most one feature has media."""
        return PlannedMedia()

    def settled(self, media: PlannedMedia, seconds: float) -> None:
        """A step was settled that had these media. seconds: that it encoded them."""

    def computed(self, sequence: Sequence) -> None:
        """More of its tokens have settled KV."""

    def left(self, sequence: Sequence) -> None:
        """Called when the sequence gives up its slot, which a step in flight may still have."""

    def vacated(self, sequence: Sequence) -> None:
        """Called when the sequence's slot is free."""


class SchedulerFeatures:
    """The features, in their order: for each hook those that override it."""

    def __init__(self, features: Iterable[SchedulerFeature] = ()) -> None:
        self.all = tuple(features)
        self.admitting = self._with("admits")
        self.starting = self._with("may_start")
        self.beginning = self._with("begins")
        self.not_starting = self._with("not_started")
        self.occupying = self._with("occupied")
        self.started = self._with("started")
        self.preparing = self._with("begin_step")
        self.encoding = self._with("encodes")
        self.limiting = self._with("end")
        self.joining = self._with("least")
        self.charging = self._with("take_cost")
        self.unscheduling = self._with("unscheduled")
        self.filling = self._with("fill")
        self.taking = self._with("take_media")
        self.settling = self._with("settled")
        self.computing = self._with("computed")
        self.leaving = self._with("left")
        self.vacating = self._with("vacated")

    def admits(self, head: Sequence) -> bool:
        """Whether the head of the queue may start, wherever, by all features. If not, it has left
        the queue for a while."""
        return all(feature.admits(head) for feature in self.admitting)

    def may_start(self, head: Sequence, computed: int) -> bool:
        """Whether the head of the queue may start after so many tokens; otherwise as `admits`."""
        return self.admits(head) and all(
            feature.may_start(head, computed) for feature in self.starting
        )

    def encodes(self) -> bool:
        """Whether the plan that is begun is one even without tokens."""
        return any(feature.encodes() for feature in self.encoding)

    def end(self, sequence: Sequence, start: int, end: int) -> int:
        """How far tokens [start, end) may be computed in this step, by all features."""
        for feature in self.limiting:
            end = feature.end(sequence, start, end)
        return end

    def least(self, sequence: Sequence, start: int) -> int:
        """How many tokens from `start` on have to be computed in one step, at least."""
        return max((feature.least(sequence, start) for feature in self.joining), default=1)

    def unscheduled(self, sequence: Sequence) -> None:
        """Takes back what `end` has prepared for a sequence that gets no tokens in this step."""
        for feature in self.unscheduling:
            feature.unscheduled(sequence)

    def _with(self, hook: str) -> tuple[SchedulerFeature, ...]:
        unused = getattr(SchedulerFeature, hook)
        return tuple(each for each in self.all if getattr(type(each), hook) is not unused)
