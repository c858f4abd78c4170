"""What drafts by passes of its own: a small model, or a head.

It keeps its rows' keys and values under the served model's block numbers, comes after that model
step by step, and samples with the draws that the served model is going to sample with (seed,
sequence, index), so that both choose alike as often as their distributions allow. Its choices are
checked like any other drafts.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import Copy, FetchKV, Plan, SlotWork
from penstock_worker.batch.logits import Logits, first_columns
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.forward.interface import Batch
from penstock_worker.sampler import SampleRequest
from penstock_worker.sampler.interface import QueuedSampler
from penstock_worker.speculation.drafting import Proposer
from penstock_worker.steps.torch_context import without_gradients

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class DraftLimits:
    """What drafts are asked for at most."""

    drafts: int
    """Tokens after a sequence's."""
    positions: int
    """Tokens that a sequence may have; after them, nothing is drafted."""
    vocab: int
    """Ids that both models have are below this."""
    ends: frozenset[int]
    """Ids after which nothing is drafted, as sequences mostly end there."""
    catch_up: int
    """Tokens, of all sequences together, that one step computes in addition to those that the
    served model computes in it."""


MOST_AWAY = 64
"""Most rows that a sequence may lag while the drafter rests: it goes on after a short rest."""

UNFOLLOWED = -1
"""In place of a number of rows: a block that was filled while its sequence wasn't followed."""


class DraftRows:
    """How many of each block's first tokens the drafter has computed: never too many, and perhaps
    too few.

    Its keys and values lie in a pool of their own, under the numbers of the blocks in which the
    served model has those of the same tokens. So sharing, copying or swapping a block does it for
    both. But the drafter needn't have computed all tokens of a block, which matters when one is
    found in the prefix cache.
    """

    def __init__(self, blocks: int, host_blocks: int, block_size: int) -> None:
        self._device = np.zeros(blocks, np.int32)
        self._host = np.zeros(host_blocks, np.int32)
        self._size = block_size

    @property
    def blocks(self) -> int:
        """How many the pool has, also those that the served model's states have for themselves."""
        return len(self._device)

    def clear(self) -> None:
        """Resets everything, as the contents of the blocks are invalid."""
        self._device.fill(0)
        self._host.fill(0)

    def copied(self, copies: Sequence[Copy]) -> None:
        """Records copies of blocks, which exist."""
        for copy in copies:
            source = self._host if copy.kind == "in" else self._device
            target = self._host if copy.kind == "out" else self._device
            target[copy.target] = source[copy.source]

    def given(self, blocks: Sequence[int]) -> None:
        """Notes that the contents of these blocks are invalid: a sequence was given them, and they
        may hold tokens that `note` doesn't learn of, as the sequence ended with them."""
        if blocks:
            self._device[np.asarray(blocks, dtype=np.int64)] = 0

    def leading(self, table: Sequence[int], end: int) -> int:
        """Returns how many of the first `end` tokens of a block table were all computed."""
        blocks = np.asarray(table[: -(-end // self._size)], dtype=np.int64)
        rows = np.maximum(self._device[blocks], 0)
        short = np.flatnonzero(rows < self._size)
        if not len(short):
            return end
        first = int(short[0])
        return min(end, first * self._size + int(rows[first]))

    def unfollowed(self, table: Sequence[int], start: int, end: int) -> None:
        """Records that tokens [start, end) of a block table are there now, and that the drafter
        won't compute them."""
        for block in range(-(-start // self._size), -(-end // self._size)):
            self._device[table[block]] = UNFOLLOWED

    def lost(self, table: Sequence[int], end: int) -> int:
        """Returns how many of the first `end` tokens of a block table are in unfollowed blocks."""
        blocks = np.asarray(table[: end // self._size], dtype=np.int64)
        return self._size * int(np.count_nonzero(self._device[blocks] == UNFOLLOWED))

    def note(self, table: Sequence[int], start: int, end: int, computed: int) -> None:
        """Records that tokens [start, end) of a block table are there now; of these and the tokens
        before, the first `computed` were computed."""
        for block in range(start // self._size, -(-end // self._size)):
            self._device[table[block]] = min(max(computed - block * self._size, 0), self._size)


@dataclass
class Followed:
    """How far the drafter has come with the sequence in a slot."""

    sampling: TokenSampling  # Without log-probabilities.
    computed: int  # Rows that it has computed, from the first one on.
    noted: int  # Tokens whose rows have been noted in DraftRows.
    told: int | None = field(default=None, kw_only=True)
    """The value of `computed` when they were noted."""


AnyFollowed = TypeVar("AnyFollowed", bound=Followed)


@dataclass
class Asked(Generic[AnyFollowed]):
    """What one step computes for a slot: rows [start, stop), and then so many drafts."""

    number: int  # The slot's.
    slot: Slot
    state: AnyFollowed
    start: int
    stop: int
    most: int  # Drafts.
    end: int  # Of what the served model computes.
    drafts: list[int] = field(default_factory=list, kw_only=True)

    @property
    def caught_up(self) -> int:
        """How many of the rows come out of DraftLimits.catch_up."""
        return self.stop - self.start

    @property
    def rows(self) -> int:
        """Rows that are computed."""
        return self.stop - self.start + self.most

    @property
    def reached(self) -> int:
        """Rows that stay computed now, from the first one on."""
        return self.stop

    def succeed(self) -> None:
        """Called after passes that have all computed what they should."""

    def fail(self) -> None:
        """Called after a pass that failed: none of the rows counts as computed."""
        self.stop = self.start
        self.drafts.clear()


AnyAsked = TypeVar("AnyAsked", bound=Asked[Any])


class SamplingDrafter(Proposer, ABC, Generic[AnyFollowed, AnyAsked]):
    """A proposer that computes logits of its drafts. May be called from several threads at once,
    with works that have no slot in common, where its passes may."""

    def __init__(self, sampler: QueuedSampler, slots: Slots, limits: DraftLimits) -> None:
        self._sampler = sampler
        self._slots = slots
        self._limits = limits
        self._followed: dict[int, AnyFollowed] = {}
        self._resting = False
        self._left: set[int] = set()
        """Slots whose sequences are followed no more."""
        self._upkeep = 0.0
        self._adding = threading.Lock()

    @abstractmethod
    def _state(self, work: SlotWork, slot: Slot) -> AnyFollowed:
        """Returns what is known of the sequence in a slot."""

    @abstractmethod
    def _ask(self, work: SlotWork, slot: Slot, state: AnyFollowed, spare: int) -> AnyAsked:
        """Returns what is to be computed for a work. `spare`: rows that may be caught up with."""

    @abstractmethod
    def _draft(self, asked: list[AnyAsked]) -> None:
        """Computes all rows that are asked for, and appends drafts to those that are drafted
        for."""

    @abstractmethod
    def _note(self, asked: AnyAsked) -> None:
        """Records what was computed for a work, if anything was."""

    def take(self, plan: Plan) -> None:
        """Records a plan that was applied to the slots."""
        for number in plan.released:
            self._followed.pop(number, None)
            self._left.discard(number)
        self._resting = plan.rests

    def reset(self) -> None:
        """Forgets all sequences."""
        self._followed.clear()
        self._left.clear()

    def proposed(self, slot: int) -> int:
        """Returns how many tokens can be proposed after the slot's."""
        if self._resting or slot in self._left:
            return 0
        return min(self._limits.drafts, self._room(len(self._slots[slot].token_ids)))

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        """Computes what is to be computed for these works. Returns drafts after each work's tokens,
        at most as many as it allows."""
        spare, asked = self._limits.catch_up, []
        drafts: dict[int, list[int]] = {}
        for work, slot in zip(scheduled, self._slots.of(scheduled), strict=True):
            if not self._follows(work, slot):
                continue
            own = self._ask(work, slot, self._state(work, slot), spare)
            spare -= own.caught_up
            asked.append(own)
        computing = [own for own in asked if own.stop > own.start]
        try:
            if computing:
                begun = time.perf_counter()
                with without_gradients():
                    self._draft(computing)
                spent = time.perf_counter() - begun
                vain = sum(own.rows for own in computing if not own.most)
                with self._adding:
                    self._upkeep += spent * vain / sum(own.rows for own in computing)
                for own in computing:
                    own.succeed()
        except BaseException:
            for own in computing:
                own.fail()
            raise
        finally:
            for own in asked:
                self._note(own)
                drafts[own.number] = own.drafts
        return [drafts.get(work.slot, []) for work in scheduled]

    def upkeep_seconds(self) -> float:
        """Returns the upkeep since the last call, seconds."""
        with self._adding:
            seconds, self._upkeep = self._upkeep, 0.0
        return seconds

    def _follows(self, work: SlotWork, slot: Slot) -> bool:
        """Returns whether anything is to be computed for a work. While the drafter rests, nothing
        is: sequences that it has followed wait for the end of a short rest, others are left."""
        if work.slot in self._left:
            return False
        state = self._followed.get(work.slot)
        if self._resting:
            if state is None or work.start + work.count - state.computed > MOST_AWAY:
                self._leave(work.slot)
            return False
        if state is None and self._lacks(work, slot):
            self._leave(work.slot)
            return False
        return True

    def _lacks(self, work: SlotWork, slot: Slot) -> bool:
        """Returns whether too little was computed of the tokens before a sequence's first work."""
        return False

    def _leave(self, number: int) -> None:
        """Follows a slot's sequence no more. What was computed of it stays right."""
        self._left.add(number)
        self._followed.pop(number, None)

    def _room(self, end: int) -> int:
        return max(0, self._limits.positions - end)

    def _sampled(self, drafting: list[AnyAsked], logits: Logits) -> list[AnyAsked]:
        """Appends a draft to each of these, by its row of logits, and returns those that are to get
        another. Waits for a device."""
        if logits.shape[1] > self._limits.vocab:
            logits = first_columns(logits, self._limits.vocab)
        requests = [
            SampleRequest(
                each.state.sampling, each.slot.index, each.slot.emitted + len(each.drafts)
            )
            for each in drafting
        ]
        slots, going_on = [each.number for each in drafting], []
        found = self._sampler.launch(logits, requests, slots).sampled()
        for each, sampled in zip(drafting, found, strict=True):
            if sampled.token is None:
                continue  # The logits were not finite.
            each.drafts.append(sampled.token)
            if len(each.drafts) < each.most and sampled.token not in self._limits.ends:
                going_on.append(each)
        return going_on


class PassDrafter(SamplingDrafter[AnyFollowed, AnyAsked]):
    """One that has keys and values of its own."""

    def __init__(
        self,
        sampler: QueuedSampler,
        slots: Slots,
        rows: DraftRows,
        limits: DraftLimits,
        groups: int = 1,
    ) -> None:
        """Passes have `groups` times as many blocks as `rows`: each of the drafter's KV groups has
        all blocks of the first group's tables, one group after another."""
        super().__init__(sampler, slots, limits)
        self._rows = rows
        self._groups = groups

    @abstractmethod
    def _begin(self, sampling: TokenSampling, computed: int, noted: int) -> AnyFollowed:
        """Returns what is known of a sequence that is met for the first time."""

    def take(self, plan: Plan) -> None:
        """Records a plan that was applied to the slots."""
        self._rows.copied(plan.copies)
        for work in plan.work:
            self._rows.given(work.new_blocks)
        super().take(plan)

    def fetched(self, message: FetchKV) -> None:
        """Follows copies of blocks. Fetched blocks have none of the drafter's rows, which are
        computed where they are wanted."""
        self._rows.copied(message.copies)
        self._rows.given(message.blocks)

    def reset(self) -> None:
        """Forgets all sequences."""
        super().reset()
        self._rows.clear()

    def _follows(self, work: SlotWork, slot: Slot) -> bool:
        found = super()._follows(work, slot)
        if work.slot in self._left:
            self._rows.unfollowed(slot.blocks, work.start, work.start + work.count)
        return found

    def _note(self, asked: AnyAsked) -> None:
        state = asked.state
        first = min(asked.start, state.noted, state.computed)
        state.computed = max(state.computed, asked.reached)
        if state.told == state.computed:
            first = state.noted  # There may be many tokens since, which have been noted.
        self._rows.note(asked.slot.blocks, first, asked.end, state.computed)
        state.noted, state.told = asked.end, state.computed

    def _state(self, work: SlotWork, slot: Slot) -> AnyFollowed:
        state = self._followed.get(work.slot)
        if state is None:
            found = self._rows.leading(slot.blocks, work.start)
            state = self._begin(without_logprobs(slot.sampling), found, work.start)
            self._followed[work.slot] = state
        return state

    def _batch(
        self, asked: Sequence[AnyAsked], tokens: list[int], starts: np.ndarray, counts: np.ndarray
    ) -> Batch:
        """Returns the rows of each that begin at `starts`, [slots], `counts` of each. tokens: of
        all rows."""
        widths = -(-(starts + counts) // self._slots.bounds.block_size)
        numbers = [own.number for own in asked]
        tables = self._slots.tables.of(numbers, widths.tolist())
        more = tuple(
            [table + group * self._rows.blocks for table in tables]
            for group in range(1, self._groups)
        )
        return Batch(np.array(tokens, dtype=np.int64), tables, starts, counts, more, numbers)


def without_logprobs(sampling: TokenSampling) -> TokenSampling:
    if sampling.logprobs is None:
        return sampling
    return msgspec.structs.replace(sampling, logprobs=None)
