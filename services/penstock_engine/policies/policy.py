"""The interface of a scheduling policy: the order of waiting sequences, the share of each in a
step, and which is preempted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import ClassVar, NamedTuple

from penstock.config.settings import SchedulerSettings
from penstock_engine.policies.pace import StepPace
from penstock_engine.policies.tenants import Tenants
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.waiting.queue import Waiting


class Turn(NamedTuple):
    """One turn in a step: that of a running sequence, or that of the sequences which wait."""

    sequence: Sequence | None  # None: those who wait
    most: int  # tokens of the step, together, for all whom this turn serves
    tenant: str | None = None  # only those of one tenant
    before: Sequence | None = None  # only those that come before it in the order


class Shortage(NamedTuple):
    """What the head of the queue lacks, when what is on its way to being free is counted as free.

    blocks and slots are at most 0 where nothing is lacking.
    """

    blocks: int
    slots: int
    needed: int  # blocks that it takes in all


class Standing(NamedTuple):
    """How a tenant stands with a policy that keeps accounts."""

    weight: int
    debt: float  # given beyond the tenant with work that was given least, in generated tokens


class Policy(ABC):
    """Decides order, shares and preemption for the scheduler, which asks it at every step. It keeps
    its own accounts, and changes no sequence itself.

    A policy is a module of this package with a subclass that has a `name`, and that name among the
    choices of `scheduling_policy` in the settings: the registry finds it.
    """

    name: ClassVar[str]
    """What the setting `scheduling_policy` calls it."""
    ages: ClassVar[bool] = False
    """Whether requests may ask for a priority."""
    makes_way: ClassVar[bool] = False
    """Whether those that run may have to give way to one that waits."""
    keeps_tenants_apart: ClassVar[bool] = False
    """Whether each tenant has a share of its own, of the waiting room and of the compiler of
    grammars too."""

    queue: Waiting
    """The sequences that wait for a slot."""
    pace: StepPace
    """Bounds how long a step may take while sequences decode."""

    @classmethod
    @abstractmethod
    def make(cls, settings: SchedulerSettings, tenants: Tenants) -> Policy:
        """A fresh policy, with a queue of its own."""

    def joined(self, sequence: Sequence) -> None:
        """A new sequence; it is about to wait."""
        return

    def left(self, sequence: Sequence) -> None:
        """A sequence that had joined has ended."""
        return

    def charge(self, sequence: Sequence, prompt: int, generated: int, block_steps: int) -> None:
        """A step was planned that computes `prompt` tokens of the sequence and samples `generated`
        ones; it has held its blocks for so many block-steps since it was last served. Or a step was
        settled, in which drafts gave it so many more tokens, and as many as `prompt` gave none."""
        return

    def debts(self) -> dict[str, float] | None:
        """Returns how much more each tenant has been given than the one that has been given least,
        for its weight, in generated tokens; None: this policy keeps no accounts. For people, not
        for decisions."""
        return None

    def standings(self, tenants: Iterable[str]) -> dict[str, Standing]:
        """Standings of those of `tenants` that have accounts here, for people who watch."""
        return {}

    def budget(self, budget: int, in_flight: int) -> int:
        """Tokens of a step of at most `budget`, with `in_flight` tokens sent before it; 0: none
        may follow now."""
        return budget

    @abstractmethod
    def turns(
        self,
        decodes: list[Sequence],
        chunks: list[Sequence],
        builder: StepBuilder,
        *,
        can_start: bool,
    ) -> Iterator[Turn]:
        """Yields turns in the order in which sequences are served. What a turn takes shows in
        `builder` before the next one is asked for.

        decodes: sequences with one token to compute.  chunks: those with more.  can_start: whether
        sequences wait, and a slot is free.
        """

    @abstractmethod
    def precedes(self, one: Sequence, other: Sequence) -> bool:
        """Whether `one` comes before `other` in the order."""

    @abstractmethod
    def victim(self, running: Collection[Sequence], needy: Sequence) -> Sequence | None:
        """Returns which running sequence gives up its blocks for `needy`; None if `needy` waits in
        place."""

    def make_way(
        self, head: Sequence, running: Iterable[Sequence], shortage: Shortage
    ) -> list[Sequence] | None:
        """Returns the sequences that give up slot and blocks so that the head of the queue can
        start: enough of them, or None if the head waits.

        Called only if `makes_way`.
        """
        return None


def enough(victims: Iterable[Sequence], shortage: Shortage) -> list[Sequence] | None:
    """The first of the victims whose room makes up for the shortage; None: all are too few."""
    taken: list[Sequence] = []
    blocks, slots = shortage.blocks, shortage.slots
    for sequence in victims:
        if blocks <= 0 and slots <= 0:
            break
        taken.append(sequence)
        blocks -= sequence.table.num_blocks if sequence.table is not None else 0
        slots -= 1
    return taken if blocks <= 0 and slots <= 0 else None
