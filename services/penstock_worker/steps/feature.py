"""Features of a step: what some models and setups have, and others go without.

A runner has the ones that its model and setup need, in one order, and asks each only at the hooks
that it overrides: a step costs nothing for a feature that isn't there. The order is that of
`loading.load.features_of`, and counts:

- Stored blocks come first: they copy blocks out of the KV cache before anything overwrites them,
  and at a reset they stop filling blocks before these belong to others.
- States and media come before what reads them; adapters say the order of works.
- Grammars come before drafting, which asks them for the texts that they force.
- The sampler's memory comes before drafting too: a draft model samples with it.
- Alignments come last: they take their works out of what is left.

Features are closed in the opposite order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from penstock.protocol.common import Vectors
from penstock.protocol.from_worker import FromWorker
from penstock.protocol.to_worker import FetchKV, Plan, Save, SlotWork, ToWorker

if TYPE_CHECKING:
    from penstock_worker.batch.inputs import Batch, Drafts
    from penstock_worker.batch.slots import Slots
    from penstock_worker.metrics.counts import WorkerCounts
    from penstock_worker.sampler.interface import SampledToken

Tell = Callable[[FromWorker], None]
"""Sends an answer to the engine core. From any thread."""


class Outcomes(Protocol):
    """The outcomes of a step that are known already, to which a feature may add some."""

    known: dict[int, SampledToken]
    """Tokens, deferrals and errors, by slot."""
    vectors: dict[int, Vectors]
    """Vectors that were asked for in place of a token, by slot; a token in `known` stands for
    each."""


class StepFeature:
    """The hooks of a feature, each of which does nothing. A subclass overrides those that it needs.

    Unless stated otherwise, the thread that computes steps calls them.
    """

    name: ClassVar[str]
    """What a refusal calls it where it is missing: "this worker has no {name}"."""
    heard: ClassVar[tuple[type[ToWorker], ...]] = ()
    """The messages that it takes outside of steps, in the session's thread."""
    received: ClassVar[tuple[type[ToWorker], ...]] = ()
    """The messages that it takes in the order of plans. One that is also `heard` comes twice."""

    def hear(self, message: ToWorker, frames: Sequence[bytes], tell: Tell) -> None:
        """Takes one of the `heard` messages, while steps go on. Returns soon; `tell` may be called
        from this thread or another. In the session's thread."""

    def receive(self, message: ToWorker, tell: Tell) -> None:
        """Takes one of the `received` messages, after the plans that came before it have begun.
        Raises PlanError."""

    def fetched(self, message: FetchKV) -> None:
        """The message's saves and copies have been made; its blocks are going to be filled without
        a plan."""

    def weights_change(self) -> None:
        """From now on, another model's numbers may be computed."""

    def reset(self) -> None:
        """Forgets all sequences and whatever else belongs to the session: a new one begins. The
        slots still have their sequences."""

    def close(self) -> None:
        """Ends the threads and processes. Called last."""

    def show_counts(self, counts: WorkerCounts) -> None:
        """Says where metrics find this feature's counts."""

    def before_copies(self, saves: Sequence[Save], overwritten: Iterable[int]) -> None:
        """Keeps the blocks in `saves` as they are now. What is queued next may write to the blocks
        in `overwritten`."""

    def take(self, plan: Plan) -> None:
        """Follows the plan's releases, admissions and works: blocks have been copied, and the slots
        have followed it. Raises PlanError."""

    def encode(self, plan: Plan) -> bool:
        """Encodes what the plan asks for. Returns whether it asks for anything. Raises
        PlanError."""
        return False

    def ordered(self, scheduled: list[SlotWork]) -> list[SlotWork]:
        """Returns the works in the order in which they had better be computed, the same on all
        ranks."""
        return scheduled

    def compute(self, scheduled: list[SlotWork], outcomes: Outcomes) -> list[SlotWork]:
        """Computes some works by itself, and adds their outcomes. Returns the others.
        Several threads may call it at once, with works that have no slot in common."""
        return scheduled

    def fitting(self, scheduled: Sequence[SlotWork], drafts: Drafts) -> Drafts:
        """Returns those of the drafts after these works that this feature can follow. `keep` is
        called for each of their slots."""
        return drafts

    def extend(self, batch: Batch, scheduled: Sequence[SlotWork], slots: Slots) -> Batch:
        """Returns the batch of these works with what this feature adds to the input. A slot for
        which something is missing fails."""
        return batch

    def keep(self, number: int, tokens: int) -> None:
        """Tells which of a slot's drafts were right: so many of its tokens stand."""

    def upkeep_seconds(self) -> float:
        """Returns the seconds of Result.upkeep_seconds since this was called before."""
        return 0.0

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        """Undoes what was done for works of a launch that has failed, before they are launched once
        more."""


Feature = TypeVar("Feature", bound=StepFeature)


class StepFeatures:
    """The features of a runner, in their order, and for each hook of a step the features that
    override it."""

    def __init__(self, features: Iterable[StepFeature] = ()) -> None:
        self.all = tuple(features)
        self.names = frozenset(each.name for each in self.all)
        self.saving = self._with("before_copies")
        self.taking = self._with("take")
        self.encoding = self._with("encode")
        self.ordering = self._with("ordered")
        self.computing = self._with("compute")
        self.limiting = self._with("fitting")
        self.extending = self._with("extend")
        self.keeping = self._with("keep")
        self.undoing = self._with("undo")
        self.keeping_up = self._with("upkeep_seconds")

    def _with(self, hook: str) -> tuple[StepFeature, ...]:
        unused = getattr(StepFeature, hook)
        return tuple(each for each in self.all if getattr(type(each), hook) is not unused)

    def find(self, kind: type[Feature]) -> Feature | None:
        """Returns the feature of this class; None: there is none."""
        return next((each for each in self.all if isinstance(each, kind)), None)

    def hear(self, message: ToWorker, frames: Sequence[bytes], tell: Tell) -> bool:
        """Passes the message to the feature that takes it. Returns whether that is all: otherwise
        it is to be received in its turn. In the session's thread."""
        kind = type(message)
        for feature in self.all:
            if kind in feature.heard:
                feature.hear(message, frames, tell)
                return kind not in feature.received
        return False

    def receive(self, message: ToWorker, tell: Tell) -> bool:
        """Has the feature whose message it is receive it. Returns whether there is one."""
        for feature in self.all:
            if type(message) in feature.received:
                feature.receive(message, tell)
                return True
        return False

    def weights_change(self) -> None:
        """Tells all features that weights may change."""
        for feature in self.all:
            feature.weights_change()

    def show_counts(self, counts: WorkerCounts) -> None:
        """Says where metrics find the counts of all features."""
        for feature in self.all:
            feature.show_counts(counts)

    def reset(self) -> None:
        """Resets all features, the first one first."""
        for feature in self.all:
            feature.reset()

    def close(self) -> None:
        """Closes all features, the last one first."""
        for feature in reversed(self.all):
            feature.close()
