"""The sequences that the worker holds between steps. The engine core assigns each to a slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile

import msgspec

from penstock.model.kv_layout import ONE_GROUP, KVGroup, paged
from penstock.protocol.common import Pooling, TokenSampling
from penstock.protocol.to_worker import (
    MAX_EXTRA_STEPS,
    NO_BLOCK,
    NewSequence,
    Plan,
    Setup,
    SlotWork,
)
from penstock_worker.batch.block_tables import BlockTables
from penstock_worker.batch.slot_media import SlotMedia, media_of
from penstock_worker.sampler.adjustments import SequenceAdjustments, adjustments_of


class PlanError(Exception):
    """A plan doesn't fit the ones before it, which is a bug on one of the two sides. Nothing was
    computed."""


@dataclass
class Slot:
    """The state of one sequence."""

    token_ids: list[int]
    """Ids of the prompt and of the emitted tokens. `append` adds one; `expect` adds a placeholder,
    -1 - the slot's number, which `fill` replaces once the token is known."""
    num_prompt: int  # Number of prompt tokens.
    index: int  # Index of the sequence within its request.
    sampling: TokenSampling
    blocks: list[int]  # The first KV group's block table, which plans extend.
    computed: int | None = None
    """Number of tokens whose keys and values are in the cache, including a prefix that the engine
    core found there. None before the first work."""
    failed: str | None = None  # The error, after which its KV is invalid.
    adjustments: SequenceAdjustments | None = None  # Logits adjustments, if sampling has any.
    prompt_from: int | None = None  # See NewSequence.
    pooling: Pooling | None = None  # What a pooling model computes for it.
    lacking: tuple[int, ...] = ()
    """The number of leading blocks of each KV group's table that were never there; empty if all
    were."""
    media: SlotMedia | None = None  # What placeholders of its prompt stand for.

    @property
    def emitted(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def known(self) -> int:
        """How many of its tokens the host knows: all but those that steps in flight sample."""
        count = len(self.token_ids)
        while count and self.token_ids[count - 1] < 0:
            count -= 1
        return count

    @property
    def awaits(self) -> bool:
        """Whether the newest token is still being sampled by a step in flight."""
        return self.token_ids[-1] < 0

    def append(self, token: int) -> None:
        """Adds a token that was sampled."""
        self.token_ids.append(token)
        if self.adjustments is not None:
            self.adjustments.advance(token)

    def expect(self, number: int) -> int:
        """Adds a placeholder for a token that a step in flight samples. `number` is the slot's.
        Returns the placeholder's index in `token_ids`."""
        self.token_ids.append(-1 - number)
        return len(self.token_ids) - 1

    def fill(self, place: int, token: int) -> None:
        """Replaces the placeholder at this index by the sampled token."""
        self.token_ids[place] = token
        if self.adjustments is not None:
            self.adjustments.advance(token)


@dataclass(frozen=True)
class SlotBounds:
    """The limits that plans are checked against."""

    slots: int
    blocks: int  # Number of KV blocks.
    block_size: int  # Tokens per block.
    vocab: int
    tokens: int  # Most tokens of a sequence.
    groups: tuple[KVGroup, ...] = ONE_GROUP  # Each has a block table for every sequence.
    encoder_rows: int = 0  # Tokens of each prompt, its first ones, that are an encoder's.

    @staticmethod
    def of(
        setup: Setup,
        vocab: int,
        blocks: int,
        groups: tuple[KVGroup, ...] = ONE_GROUP,
        encoder_rows: int = 0,
    ) -> SlotBounds:
        """`blocks` is the number of KV blocks. Of `groups`, those with block tables count."""
        return SlotBounds(
            slots=setup.max_num_seqs,
            blocks=blocks,
            block_size=setup.block_size,
            vocab=vocab,
            tokens=setup.max_model_len,
            groups=paged(groups),
            encoder_rows=encoder_rows,
        )


class Slots:
    """All slots of the worker.

    What the sequences of a request share is made once, if they are admitted with `like` (see
    NewSequence).
    """

    def __init__(self, bounds: SlotBounds, *, tokens_from_plans: bool = False) -> None:
        """`tokens_from_plans` is for a stage that doesn't sample and learns tokens from plans. Such
        a stage doesn't learn of deferrals either, so the work of a deferred token may be
        repeated."""
        self.bounds = bounds
        self.tables = BlockTables(bounds.slots, len(bounds.groups))
        """The block tables of all slots in each KV group; the first one's are `Slot.blocks`."""
        self._tokens_from_plans = tokens_from_plans
        self._slots: dict[int, Slot] = {}

    def __getitem__(self, number: int) -> Slot:
        return self._slots[number]

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)

    def of(self, works: Sequence[SlotWork]) -> list[Slot]:
        """Returns the slot of each work."""
        held = self._slots
        return [held[work.slot] for work in works]

    def at(self, numbers: Sequence[int]) -> list[Slot]:
        """Returns the slots with these numbers."""
        held = self._slots
        return [held[number] for number in numbers]

    def holds(self, number: int, slot: Slot) -> bool:
        """Returns whether the sequence is still in that slot."""
        return self._slots.get(number) is slot

    def clear(self) -> None:
        self._slots.clear()

    def placed(self, plan: Plan) -> Plan:
        """Returns the plan with works that come after drafts where they start: after those that
        were kept."""
        if not any(work.after_drafts for work in plan.work):
            return plan
        return msgspec.structs.replace(plan, work=[self._placed(work) for work in plan.work])

    def _placed(self, work: SlotWork) -> SlotWork:
        slot = self._slots.get(work.slot)
        if not work.after_drafts or slot is None or slot.computed is None:
            return work
        start = max(work.start, slot.computed)
        return msgspec.structs.replace(work, start=start, after_drafts=False)

    def apply(self, plan: Plan) -> None:
        """Releases slots, admits sequences, and appends new blocks, checking every number.

        Raises PlanError, after which the slots may be changed in part; the session ends then
        anyway.
        """
        for number in plan.released:
            if self._slots.pop(number, None) is None:
                raise PlanError(f"slot {number} is released but has no sequence")
        for new in plan.admitted:
            self._admit(new)
        seen: set[int] = set()
        for work in plan.work:
            if work.slot in seen:
                raise PlanError(f"slot {work.slot} has work twice in one step")
            seen.add(work.slot)
            self._take_work(work, plan.extra_steps)

    def _admit(self, new: NewSequence) -> None:
        if not 0 <= new.slot < self.bounds.slots:
            raise PlanError(f"slot {new.slot} is not in [0, {self.bounds.slots})")
        if new.slot in self._slots:
            raise PlanError(f"a sequence is admitted to slot {new.slot}, which is in use")
        lacking = self._lacking(new)
        if new.prompt_from is not None and new.prompt_from < 1:
            raise PlanError(f"slot {new.slot}: the prompt's token {new.prompt_from} follows none")
        slot = self._slot_in_full(new) if new.like is None else self._slot_like(new, new.like)
        slot.lacking = lacking
        self.tables.put(new.slot, 0, new.blocks)
        self._slots[new.slot] = slot

    def _lacking(self, new: NewSequence) -> tuple[int, ...]:
        """Checks the blocks of a new sequence, and returns Slot.lacking."""
        self._check_count(new.slot, new.blocks)
        self._check_blocks(new.slot, new.states)
        self._check_blocks(new.slot, new.tail)
        if NO_BLOCK not in new.blocks:
            self._check_blocks(new.slot, new.blocks)
            return ()
        each, found = len(new.blocks) // len(self.bounds.groups), []
        for at, group in enumerate(self.bounds.groups):
            table = new.blocks[at * each : (at + 1) * each]
            held = list(dropwhile(NO_BLOCK.__eq__, table)) if group.forgets else table
            self._check_blocks(new.slot, held)
            found.append(each - len(held))
        return tuple(found)

    def _slot_in_full(self, new: NewSequence) -> Slot:
        self._check_length(new, new.num_prompt, len(new.tokens))
        self._check_ids(new)
        media, unfit = media_of(new, self.bounds.encoder_rows)
        return Slot(
            list(new.tokens),
            new.num_prompt,
            new.index,
            new.sampling,
            self._first_table(new.blocks),
            adjustments=adjustments_of(new.sampling, new.tokens, new.num_prompt, self.bounds.vocab),
            prompt_from=new.prompt_from,
            pooling=new.pooling,
            media=media,
            failed=unfit,
        )

    def _slot_like(self, new: NewSequence, like: int) -> Slot:
        """Returns a slot for a sequence whose request already has one in slot `like`. What was
        checked and made there of the prompt and the sampling parameters is reused."""
        other = self._slots.get(like)
        if other is None:
            raise PlanError(
                f"slot {new.slot} is to be like slot {like}, which holds no sequence by then"
            )
        prompt = other.num_prompt
        self._check_length(new, prompt, prompt + len(new.tokens))
        self._check_ids(new)
        return Slot(
            other.token_ids[:prompt] + new.tokens,
            prompt,
            new.index,
            other.sampling,
            self._first_table(new.blocks),
            adjustments=None if other.adjustments is None else other.adjustments.beside(new.tokens),
            prompt_from=new.prompt_from,
            pooling=other.pooling,
            media=other.media,
        )

    def _check_length(self, new: NewSequence, prompt: int, tokens: int) -> None:
        if not 1 <= prompt <= tokens <= self.bounds.tokens:
            raise PlanError(
                f"slot {new.slot}: {prompt} prompt tokens of {tokens}; at most "
                f"{self.bounds.tokens} tokens are allowed"
            )

    def _check_ids(self, new: NewSequence) -> None:
        tokens = new.tokens
        if tokens and (min(tokens) < 0 or max(tokens) >= self.bounds.vocab):
            raise PlanError(f"slot {new.slot}: a token id is not in [0, {self.bounds.vocab})")

    def _take_work(self, work: SlotWork, extra_steps: int) -> None:
        slot = self._slots.get(work.slot)
        if slot is None:
            raise PlanError(f"slot {work.slot} has work but no sequence")
        self._check_blocks(work.slot, work.states)
        if work.new_blocks:
            self._check_blocks(work.slot, work.new_blocks)
            self._check_count(work.slot, work.new_blocks)
            self.tables.put(work.slot, len(slot.blocks), work.new_blocks)
            slot.blocks.extend(self._first_table(work.new_blocks))
        if slot.lacking:
            self._check_seen(work, slot.lacking)
        if slot.failed is not None:
            return
        end = work.start + work.count
        if work.sampled:
            self._take_sampled(slot, work, end - len(work.sampled))
        again = (
            self._tokens_from_plans
            and slot.computed is not None
            and work.start == slot.computed - 1
        )
        if slot.computed is not None and work.start != slot.computed and not again:
            raise PlanError(
                f"slot {work.slot}: work starts at token {work.start}, {slot.computed} are computed"
            )
        if work.start < 0 or work.count < 1 or end > len(slot.token_ids):
            raise PlanError(
                f"slot {work.slot}: tokens [{work.start}, {end}) of {len(slot.token_ids)} to "
                "compute"
            )
        if extra_steps:
            self._check_extra_steps(work, slot, end, extra_steps)
        self._check_room(work, slot, end + work.draft)

    def _check_extra_steps(self, work: SlotWork, slot: Slot, end: int, extra_steps: int) -> None:
        if work.count != 1 or work.draft or end != len(slot.token_ids):
            raise PlanError(f"slot {work.slot}: only decodes without drafts get extra steps")
        room = min(len(slot.blocks) * self.bounds.block_size, self.bounds.tokens - 1)
        if not 0 < extra_steps <= MAX_EXTRA_STEPS or end + extra_steps > room:
            raise PlanError(
                f"slot {work.slot}: {extra_steps} extra steps after {end}; there is room for "
                f"{min(room - end, MAX_EXTRA_STEPS)}"
            )

    def _check_room(self, work: SlotWork, slot: Slot, end: int) -> None:
        """`end`: of what is computed, drafts included."""
        if end > len(slot.blocks) * self.bounds.block_size:
            raise PlanError(
                f"slot {work.slot}: {end} tokens don't fit {len(slot.blocks)} blocks of "
                f"{self.bounds.block_size}"
            )
        if work.draft < 0 or (work.draft and end > self.bounds.tokens):
            raise PlanError(
                f"slot {work.slot}: {work.draft} tokens are drafted up to {end}; at most "
                f"{self.bounds.tokens} tokens are allowed"
            )

    def _take_sampled(self, slot: Slot, work: SlotWork, first: int) -> None:
        """Appends those of the sampled tokens, at positions from `first` on, that the slot doesn't
        have yet. The others must agree with what it has."""
        known = len(slot.token_ids)
        if not slot.num_prompt <= first <= known or first + len(work.sampled) > self.bounds.tokens:
            raise PlanError(
                f"slot {work.slot}: {len(work.sampled)} tokens were sampled from {first} on; it has"
                f" {slot.num_prompt} prompt tokens of {known}"
            )
        if not all(0 <= token < self.bounds.vocab for token in work.sampled):
            raise PlanError(f"slot {work.slot}: a sampled id is not in [0, {self.bounds.vocab})")
        there = slot.token_ids[first : first + len(work.sampled)]
        if there != work.sampled[: len(there)]:
            raise PlanError(
                f"slot {work.slot}: {there} were sampled here, {work.sampled} elsewhere"
            )
        for token in work.sampled[len(there) :]:
            slot.append(token)

    def _first_table(self, blocks: list[int]) -> list[int]:
        return blocks[: len(blocks) // len(self.bounds.groups)]

    def _check_seen(self, work: SlotWork, lacking: tuple[int, ...]) -> None:
        for group, missing in zip(self.bounds.groups, lacking, strict=True):
            seen = group.first_seen(work.start) // self.bounds.block_size
            if seen < missing:
                raise PlanError(
                    f"slot {work.slot}: token {work.start} sees block {seen}, and there is none "
                    f"before {missing}"
                )

    def _check_blocks(self, number: int, blocks: list[int]) -> None:
        if not blocks or (min(blocks) >= 0 and max(blocks) < self.bounds.blocks):
            return
        wrong = next(block for block in blocks if not 0 <= block < self.bounds.blocks)
        raise PlanError(f"slot {number}: block {wrong} is not in [0, {self.bounds.blocks})")

    def _check_count(self, number: int, blocks: list[int]) -> None:
        if len(blocks) % len(self.bounds.groups):
            raise PlanError(
                f"slot {number}: {len(blocks)} blocks for {len(self.bounds.groups)} KV groups"
            )
