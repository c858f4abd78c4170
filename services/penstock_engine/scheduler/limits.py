"""What the scheduler asks beside a step's budget, slots and KV blocks, as it is without media,
adapters and audits: it keeps nobody from anything."""

from __future__ import annotations

from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.request.step_in_flight import PlannedMedia


class ChunkLimit:
    """Asked by the scheduler for each sequence of a step.  This one keeps nobody from anything; a
    subclass may, and is told what becomes of the sequences that it has let start."""

    short: Sequence | None = None
    """The sequence whose next tokens must be computed in one step, and for which the latest step
    was too short. It is served first in the next step, by itself if need be."""
    whole_spans: bool = False
    """Whether a sequence can't start in the middle of a span of media."""

    @property
    def num_waiting(self) -> int:
        """Sequences that it has taken out of the queue."""
        return 0

    @property
    def encodes(self) -> bool:
        """Whether the plan that is begun is one even without tokens."""
        return False

    def begin_step(self) -> None:
        """A plan is begun."""

    def may_start(self, sequence: Sequence, computed: int) -> bool:
        """Whether the head of the queue may start after so many tokens. If not, it has been taken
        out of the queue, and comes back when it may."""
        return True

    def started(self, sequence: Sequence, computed: int) -> None:
        """Called when the sequence has got a slot."""

    def end(self, sequence: Sequence, start: int, end: int) -> int:
        """How far tokens [start, end) may be computed in this step; at least `start`. Prepares for
        their being computed."""
        return end

    def begins(self, sequence: Sequence) -> bool:
        """Whether a sequence that may compute nothing yet may start all the same, as `end` has
        found: what it waits for goes on in steps."""
        return False

    def least(self, sequence: Sequence, start: int) -> int:
        """How many of its tokens from `start` on have to be computed in one step, at least."""
        return 1

    def take_cost(self, sequence: Sequence) -> int:
        """Tokens that count as computed for the sequence beside its own, since this was asked
        last."""
        return 0

    def computed(self, sequence: Sequence) -> None:
        """More of its tokens have settled KV."""

    def unscheduled(self, sequence: Sequence) -> None:
        """Called when a running sequence gets no tokens in this step: takes back what `end` has
        prepared for them."""

    def not_started(self, sequence: Sequence) -> None:
        """Called when a sequence could not start, because it may compute nothing in this step."""

    def left(self, sequence: Sequence) -> None:
        """Called when the sequence has given up its slot."""

    def take(self) -> PlannedMedia:
        """What the plan that is made now tells workers."""
        return PlannedMedia()

    def settled(self, media: PlannedMedia, seconds: float) -> None:
        """A step was settled that had these media. seconds: that it encoded them."""


class SpareSteps:
    """Asked by the scheduler for what a step computes that would otherwise be empty. This one has
    nothing."""

    sequence: Sequence | None = None
    """What runs so. It is in a slot, and in neither the queue nor the policy."""

    def fill(self, builder: StepBuilder) -> None:
        """Adds something to an empty step."""


class StartGate:
    """Asked by the scheduler for the head of the queue. This one lets everybody start; a subclass
    may have some wait, and is told who gets a slot and gives it up."""

    @property
    def num_waiting(self) -> int:
        """Sequences that it has taken out of the queue."""
        return 0

    def may_start(self, sequence: Sequence) -> bool:
        """Whether the head of the queue may start. If not, it has been taken out of the queue, and
        comes back when it may."""
        return True

    def occupied(self, sequence: Sequence) -> None:
        """Called when the sequence has got a slot."""

    def vacated(self, sequence: Sequence) -> None:
        """Called when the sequence has given up its slot."""
