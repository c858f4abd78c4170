"""A step while it is being decided."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import MAX_EXTRA_STEPS, Copy, NewSequence, Plan, Save, SlotWork
from penstock_engine.kv.table import BlockTable
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_in_flight import PlannedMedia, StepInFlight
from penstock_engine.speculation.draft_policy import StepSize

MAX_PROMPT_LOGPROBS = 65_536
"""Prompt tokens that one result reports log-probabilities of, some 300 bytes each: so it fits a
message, however many tokens a step may have."""


class StepBuilder:
    """Collects what a step computes, within its token budget, and which sequences start in it.

    What starts brings all its tokens along, whether they are to be computed or not: their keys are
    looked up, their blocks claimed, their ids sent.  So that has a bound of its own.
    """

    __slots__ = (
        "_admitted",
        "_held",
        "alone",
        "drafts",
        "ends",
        "extra_steps",
        "items",
        "least_proposed",
        "left",
        "reportable",
        "room",
        "wanting",
    )

    def __init__(self, budget: int, room: int) -> None:
        self.left = budget  # tokens that are not given out
        self._held = 0  # tokens that are held back
        self.room = room  # tokens that further starting sequences may bring
        self.reportable = MAX_PROMPT_LOGPROBS
        """Prompt tokens that the step's result may yet report log-probabilities of."""
        self.items: dict[int, tuple[Sequence, int, int, list[int]]] = {}
        """The scheduled work by slot: the sequence, the first token to compute, the end of these
        tokens, new blocks."""
        self.alone = False  # see StepInFlight
        self.wanting = False  # one that runs found no blocks
        self.drafts: dict[int, int] = {}  # see StepInFlight
        self.extra_steps = 0  # see Plan
        self.ends: list[int] = []  # likewise
        self.least_proposed = 0  # likewise
        self._admitted: dict[int, Sequence] = {}

    def admit(self, sequence: Sequence) -> None:
        """The worker gets the sequence in full, with the blocks that its table has now."""
        if sequence.slot is None:
            raise ValueError("a sequence without a slot can't be admitted")
        self._admitted[sequence.slot] = sequence
        self.room -= _carried(sequence)

    def can_carry(self, sequence: Sequence) -> bool:
        """Whether there is room for what it brings; one always may start."""
        return not self._admitted or _carried(sequence) <= self.room

    def most(self, sequence: Sequence) -> int:
        """Tokens that the step has left for a sequence."""
        return min(self.left, self.reportable) if sequence.reports_prompt else self.left

    def keep_to(self, tokens: float) -> None:
        """Leaves at most so many tokens to be given out, and holds the others back."""
        held = max(0, self.left - max(0, int(min(tokens, self.left))))
        self.left -= held
        self._held += held

    def reach(self, tokens: int) -> None:
        """Leaves so many tokens at least, as far as others were held back."""
        more = min(max(0, tokens - self.left), self._held)
        self.left += more
        self._held -= more

    def release(self) -> None:
        """Holds nothing back any more."""
        self.reach(self.left + self._held)

    def starts(self, sequence: Sequence) -> bool:
        """Whether the sequence was admitted in this builder."""
        return sequence.slot in self._admitted

    def schedule(self, sequence: Sequence, start: int, end: int, new_blocks: list[int]) -> None:
        """Computes tokens [start, end) of a sequence that has a slot."""
        slot = sequence.slot
        if slot is None or slot in self.items or end - start > self.left:
            raise ValueError(f"slot {slot} can't be scheduled in this state")
        self.left -= end - start
        if end > start + 1 and sequence.reports_prompt:
            self.reportable -= end - start
        self.items[slot] = (sequence, start, end, new_blocks)

    def withdraw(self, sequence: Sequence) -> None:
        """Takes back what a sequence was given: it is being preempted."""
        item = self.items.pop(sequence.slot, None) if sequence.slot is not None else None
        if item is None:
            return
        tokens = item[2] - item[1]
        self.left += tokens
        if tokens > 1 and sequence.reports_prompt:
            self.reportable += tokens

    def draft(self, slot: int, count: int, new_blocks: list[int]) -> None:
        """Allows so many drafts after the tokens of a scheduled sequence. new_blocks: all that the
        sequence gets in this step."""
        sequence, start, end, _ = self.items[slot]
        if slot in self.drafts or not 0 < count <= self.left:
            raise ValueError(f"slot {slot} can't have {count} drafts")
        self.left -= count
        self.drafts[slot] = count
        self.items[slot] = (sequence, start, end, new_blocks)

    def give(self, slot: int, new_blocks: list[int]) -> None:
        """new_blocks: all that the sequence of a slot gets in this step."""
        sequence, start, end, _ = self.items[slot]
        self.items[slot] = (sequence, start, end, new_blocks)

    def go_on(self, extra_steps: int, ends: list[int], least_proposed: int) -> None:
        """Each sequence may get so many tokens after the one it samples. See Plan."""
        if self.drafts or extra_steps > MAX_EXTRA_STEPS:
            raise ValueError(f"a step can't have {extra_steps} extra steps")
        self.extra_steps, self.ends, self.least_proposed = extra_steps, ends, least_proposed

    def size(self) -> StepSize:
        """Size of what is scheduled, without drafts."""
        decodes = tokens = 0
        for _, start, end, _ in self.items.values():
            decodes += end - start == 1
            tokens += end - start
        return StepSize(decodes, tokens - decodes)

    def commit(
        self,
        number: int,
        released: list[int],
        copies: list[Copy],
        media: PlannedMedia | None = None,
        *,
        wants_proposed: bool = True,
        saves: list[Save] | None = None,
        rests: bool = False,
    ) -> tuple[Plan, StepInFlight]:
        """The plan to send, and what is kept of it. Moves the progress of each of its sequences.
        media: what it encodes.  wants_proposed, saves, rests: see Plan."""
        work: list[SlotWork] = []
        items: list[tuple[Sequence, int, bool]] = []
        tokens = decodes = 0
        for slot, (sequence, start, end, new_blocks) in self.items.items():
            states = [] if sequence.table is None else sequence.table.new_states(new_blocks)
            drafts = self.drafts.get(slot, 0)
            count = end - start
            progress = sequence.progress
            after = progress.drafts > 0
            work.append(SlotWork(slot, start, count, new_blocks, [], states, drafts, after))
            room = drafts + self.extra_steps
            samples = progress.schedule(end, number, len(items) + 1, room)
            items.append((sequence, end - progress.kept, samples))
            tokens += count + drafts
            decodes += end - start == 1
        media = media or PlannedMedia()
        plan = Plan(
            number,
            number - 1,
            released,
            self._admissions(),
            work,
            copies,
            media.encode,
            media.dropped,
            media.partly,
            wants_proposed,
            saves or [],
            self.extra_steps,
            self.ends,
            self.least_proposed,
            rests,
        )
        step = StepInFlight(
            number,
            items,
            alone=self.alone,
            tokens=tokens,
            decodes=decodes,
            media=media,
            drafts=self.drafts,
            wants_proposed=wants_proposed,
            extra_steps=self.extra_steps,
            least_proposed=self.least_proposed,
        )
        return plan, step

    def _admissions(self) -> list[NewSequence]:
        """Admissions in the order in which the worker reads them."""
        unknown = dict(self._admitted)
        admissions = []
        for slot, sequence in self._admitted.items():
            admissions.append(_admission(sequence, unknown))
            del unknown[slot]
        return admissions


ANY_SAMPLING = TokenSampling(0)
"""Stands for the sampling of a sequence that is like another: it has that one's."""


def _carried(sequence: Sequence) -> int:
    return sequence.num_tokens + sequence.request.num_carried


def _slot_of(sequence: Sequence) -> int:
    if sequence.slot is None:
        raise ValueError(f"sequence {sequence.index} of {sequence.request.name} has no slot")
    return sequence.slot


def _table_of(sequence: Sequence) -> BlockTable:
    if sequence.table is None:
        raise ValueError(f"sequence {sequence.index} of {sequence.request.name} has no blocks")
    return sequence.table


def _admission(sequence: Sequence, unknown: Container[int]) -> NewSequence:
    """Returns the worker's description of a new sequence: in full, or as a copy of a sibling that
    the worker has. unknown: slots of those that it has not read of yet."""
    new = _without_states(sequence, unknown)
    states = _table_of(sequence).checkpoints
    if states is None:
        return new
    tail = states.tail
    return msgspec.structs.replace(
        new,
        states=states.all_blocks(),
        state_at=states.tokens_found,
        tail=[] if tail is None else tail.blocks,
        tail_at=0 if tail is None else tail.tokens,
    )


def _without_states(sequence: Sequence, unknown: Container[int]) -> NewSequence:
    for other in sequence.request.sequences.values():
        if other.slot is not None and other.slot not in unknown:
            return NewSequence(
                slot=_slot_of(sequence),
                tokens=sequence.emitted.tolist(),
                num_prompt=len(sequence.request.prompt_token_ids),
                index=sequence.index,
                sampling=ANY_SAMPLING,
                blocks=_table_of(sequence).entries(),
                prompt_from=sequence.prompt_reported if sequence.reports_prompt else None,
                like=other.slot,
            )
    return _in_full(sequence)


def _in_full(sequence: Sequence) -> NewSequence:
    return NewSequence(
        slot=_slot_of(sequence),
        tokens=sequence.all_token_ids(),
        num_prompt=len(sequence.request.prompt_token_ids),
        index=sequence.index,
        sampling=sequence.request.sampling,
        blocks=_table_of(sequence).entries(),
        grammar=sequence.request.grammar,
        pooling=sequence.request.pooling,
        prompt_from=sequence.prompt_reported if sequence.reports_prompt else None,
        media=None if sequence.request.media is None else sequence.request.media.media,
        draft_scope=sequence.request.draft_scope,
        prediction=sequence.request.prediction.tolist(),
        claimed=sequence.request.claimed,
        adapter="" if sequence.request.adapter is None else sequence.request.adapter.digest,
    )
