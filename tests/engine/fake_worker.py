"""A worker that computes nothing, checks every plan, and answers with tokens of `fake_model.py`.

Its KV cache is real in one respect: each row of each block remembers which tokens it stands for,
and for which KV group, so a block that was handed to two sequences, or read after it was freed, is
found out. So do checkpoints of recurrent states, and the state in each slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from penstock.model.kv_layout import ONE_GROUP, KVGroup, paged, state_of
from penstock.protocol.common import Grammar, TokenLogprobs
from penstock.protocol.from_worker import GrammarFailed, GrammarReady, Result, SlotResult
from penstock.protocol.to_worker import MAX_EXTRA_STEPS, Copy, NewSequence, Plan, Setup, SlotWork
from penstock.protocol.worker_resources import CompileGrammar, DropGrammar
from tests.engine.fake_adapters import FakeAdapters, adapted
from tests.engine.fake_disk import DiskReader, FakeDisk
from tests.engine.fake_media import FakeMedia, Mark, marks
from tests.engine.fake_model import EOS, next_token, told_of
from tests.engine.fake_slot import STATE, WRONG, Slot, like

MOST_IN_FLIGHT = 4
"""Steps, in these tests."""


@dataclass
class FakeWorker:
    """Raises AssertionError on the first plan that breaks a rule of the protocol."""

    setup: Setup
    num_blocks: int
    fail_prompts: set[tuple[int, ...]] = field(default_factory=set)
    slots: dict[int, Slot] = field(default_factory=dict)
    rows: dict[int, dict[int, tuple[int, tuple[Mark, ...]]]] = field(default_factory=dict)
    """Block, row in it -> the KV group and the tokens that it stands for."""
    host_rows: dict[int, dict[int, tuple[int, tuple[Mark, ...]]]] = field(default_factory=dict)
    num_host_blocks: int = 0
    last_step: int = 0
    log: list[Plan] = field(default_factory=list)
    asked: dict[int, Grammar] = field(default_factory=dict)
    bad: dict[int, Grammar] = field(default_factory=dict)
    grammars: dict[int, Grammar] = field(default_factory=dict)
    late: Callable[[], bool] = lambda: False
    goes_on: bool = False
    """Whether it computes extra steps by itself."""
    disturbed: Callable[[], bool] = lambda: False
    """Whether it stops doing so."""
    proposes: Callable[[], int] = lambda: 0
    """Tokens that it could draft next, of some sequence."""
    drafts: Callable[[int], tuple[int, int]] = lambda most: (most, most)
    """How many it drafts of so many at most, and how many of these are right."""
    drops: list[tuple[int, int]] = field(default_factory=list)
    """(the last step sent before it, grammar) of each DropGrammar whose turn has not come."""
    groups: tuple[KVGroup, ...] = ONE_GROUP
    media: FakeMedia = field(default_factory=lambda: FakeMedia(0))
    adapters: FakeAdapters = field(default_factory=lambda: FakeAdapters(0))
    disk: FakeDisk | None = None
    reader: DiskReader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = DiskReader(self.disk, self.rows)

    def hears(self, message: CompileGrammar | DropGrammar, sent: int) -> None:
        """Nothing is compiled until `compiles` says so. sent: the last step sent before this; what
        is to be dropped may still be used by the steps up to there."""
        if isinstance(message, CompileGrammar):
            assert message.grammar not in {**self.asked, **self.bad, **self.grammars}
            self.asked[message.grammar] = message.definition
        else:
            self.drops.append((sent, message.grammar))
            self._drop()

    def _drop(self) -> None:
        while self.drops and self.drops[0][0] <= self.last_step:
            number = self.drops.pop(0)[1]
            held = (self.asked, self.bad, self.grammars)
            known = [each.pop(number) for each in held if number in each]
            assert len(known) == 1

    def compiles(self, number: int) -> GrammarReady | GrammarFailed:
        """Grammars of the kind `lark` are bad ones."""
        definition = self.asked.pop(number)
        if definition.kind == "lark":
            self.bad[number] = definition  # The engine drops it.
            return GrammarFailed(number, "this grammar is bad")
        self.grammars[number] = definition
        return GrammarReady(number)

    def execute(self, plan: Plan) -> Result:
        assert plan.step == self.last_step + 1
        assert plan.follows == self.last_step
        self.last_step = plan.step
        self.reader.save(plan.saves)
        for copy in plan.copies:
            self._copy(copy)
        self.media.execute(plan)
        assert len(set(plan.released)) == len(plan.released)
        for number in plan.released:
            del self.slots[number]
        whole = [self._admit(new) for new in plan.admitted]
        self.adapters.check_used(new.adapter for new in whole)
        self.log.append(msgspec.structs.replace(plan, admitted=whole))
        tokens = sum(work.count + work.draft for work in plan.work)
        assert tokens + len(plan.encode) + len(plan.partly) > 0
        assert tokens <= self.setup.max_num_batched_tokens
        assert len({work.slot for work in plan.work}) == len(plan.work)
        plan = msgspec.structs.replace(plan, work=[self._placed(work) for work in plan.work])
        self._check_extra_steps(plan)
        for work in plan.work:
            slot = self.slots[work.slot]
            slot.start = work.start
            slot.drafts.append(work.draft + plan.extra_steps)
            for table, new in zip(slot.tables, self._by_group(work.new_blocks), strict=True):
                table += new
            self._add_states(slot, work.states)
        self._check_blocks()
        self._drop()
        result = Result(plan.step, [self._work(work) for work in plan.work])
        if plan.extra_steps:
            result = msgspec.structs.replace(result, slots=self._go_on(plan, result.slots))
        self.begin_fetches()
        return result

    def _check_extra_steps(self, plan: Plan) -> None:
        if not plan.extra_steps:
            return
        assert self.goes_on
        assert plan.extra_steps <= MAX_EXTRA_STEPS
        assert not plan.encode
        assert not plan.partly
        for work in plan.work:
            slot = self.slots[work.slot]
            assert (work.count, work.draft, slot.grammar) == (1, 0, None)
            assert work.start + 1 == len(slot.tokens)
            assert len(slot.tokens) + plan.extra_steps < self.setup.max_model_len

    def _go_on(self, plan: Plan, results: list[SlotResult]) -> list[SlotResult]:
        """With tokens behind those of the plan's works, until something ends that."""
        more: dict[int, list[SlotResult]] = {result.slot: [] for result in results}
        newest = results
        for _ in range(plan.extra_steps):
            if (
                any(each.token is None or each.token in plan.ends for each in newest)
                or 0 < plan.least_proposed <= sum(each.proposed for each in newest)
                or self.disturbed()
            ):
                break
            newest = []
            for work in plan.work:
                slot = self.slots[work.slot]
                own = SlotWork(work.slot, len(slot.tokens) - 1, 1)
                newest.append(self._work(own))
                more[work.slot].append(newest[-1])
        return [_with_more(result, more[result.slot]) for result in results]

    def begin_fetches(self) -> None:
        """Begins the fetches for which no step has to be computed before."""
        self.reader.begin(self.last_step, self._copy)

    def _copy(self, copy: Copy) -> None:
        source = self.host_rows if copy.kind == "in" else self.rows
        target = self.host_rows if copy.kind == "out" else self.rows
        sizes = {id(self.rows): self.num_blocks, id(self.host_rows): self.num_host_blocks}
        assert 0 <= copy.source < sizes[id(source)]
        assert 0 <= copy.target < sizes[id(target)]
        target[copy.target] = dict(source[copy.source])

    def _admit(self, new: NewSequence) -> NewSequence:
        """Returns it in full."""
        assert 0 <= new.slot < self.setup.max_num_seqs
        assert new.slot not in self.slots
        if new.like is not None:
            new = like(self.slots[new.like].new, new)
        assert 1 <= new.num_prompt <= len(new.tokens)
        grammar = None if new.grammar is None else self.grammars[new.grammar]
        slot = Slot(new, list(new.tokens), self._by_group(new.blocks), grammar)
        self.slots[new.slot] = slot
        self._start_state(slot, new)
        return new

    def _start_state(self, slot: Slot, new: NewSequence) -> None:
        group, slot.state, states = state_of(self.groups), new.state_at, new.states
        if group is None or group.every is None:
            assert (states, new.state_at) == ([], 0)
            return
        assert new.state_at >= 0
        if new.state_at:
            found, states = states[: group.blocks], states[group.blocks :]
            assert len(found) == group.blocks
            apart = new.state_at % group.every
            (slot.tails if apart else slot.checkpoints)[new.state_at] = found
            for piece, block in enumerate(found):
                row = self._state_row(slot, piece, new.state_at)
                assert self.rows[block].get(STATE) == row, "it is another's state"
        self._add_states(slot, states)
        if new.tail:
            assert len(new.tail) == group.blocks
            assert new.tail_at > new.state_at
            assert new.tail_at % group.every
            slot.tails[new.tail_at] = new.tail

    def _add_states(self, slot: Slot, blocks: list[int]) -> None:
        """Blocks for the next checkpoints: those that the tables have room for."""
        group = state_of(self.groups)
        if group is None or group.every is None:
            assert not blocks
            return
        each, rest = divmod(len(blocks), group.blocks)
        assert not rest
        newest = max(slot.checkpoints, default=slot.new.state_at)
        first = newest // group.every + 1
        for number in range(each):
            own = blocks[number * group.blocks : (number + 1) * group.blocks]
            slot.checkpoints[(first + number) * group.every] = own
        room = len(slot.tables[0]) * self.setup.block_size
        newest = max(slot.checkpoints, default=newest)
        assert newest // group.every == room // group.every

    def _state_row(self, slot: Slot, piece: int, tokens: int) -> tuple[int, tuple[Mark, ...]]:
        return (len(self.groups) + piece, tuple(_marks(slot)[:tokens]))

    def _advance_state(self, slot: Slot, start: int, end: int) -> None:
        """Computes tokens [start, end) of it, and copies it where checkpoints lie."""
        if state_of(self.groups) is None:
            return
        # A token whose mask was late is computed again, which the state must not take up twice.
        again = slot.state == end == start + 1
        assert again or slot.state == start, "the state isn't that of the tokens before"
        slot.state = end
        for tokens, blocks in [*slot.checkpoints.items(), *slot.tails.items()]:
            if start < tokens <= end:
                for piece, block in enumerate(blocks):
                    self.rows[block] = {STATE: self._state_row(slot, piece, tokens)}

    def _by_group(self, blocks: list[int]) -> list[list[int]]:
        groups = len(paged(self.groups))
        each, rest = divmod(len(blocks), groups)
        assert not rest, "the groups' tables aren't equally long"
        return [blocks[at * each : (at + 1) * each] for at in range(groups)]

    def _check_blocks(self) -> None:
        # Blocks may be shared: that what lies in them is each owner's own is checked at each work.
        for slot in self.slots.values():
            held = [
                block
                for group, table in zip(paged(self.groups), slot.tables, strict=True)
                for block in table[group.first_seen(slot.start) // self.setup.block_size :]
            ]
            newest = max((at for at in slot.checkpoints if at <= slot.start), default=0)
            for tokens, blocks in slot.checkpoints.items():
                held += blocks if tokens >= newest else []
            for tokens, blocks in slot.tails.items():
                held += blocks if tokens > slot.start else []
            assert len(set(held)) == len(held), "a block is twice in a table"
            assert all(0 <= block < self.num_blocks for block in held)
            assert not self.reader.held.keys() & set(held), "a block is still being read"

    def _placed(self, work: SlotWork) -> SlotWork:
        """Behind drafts that were right, as many as the last steps may have had."""
        slot = self.slots[work.slot]
        if not work.after_drafts or slot.computed is None or self._fails(slot):
            return work
        assert work.start <= slot.computed <= work.start + sum(slot.drafts[-MOST_IN_FLIGHT:])
        return msgspec.structs.replace(work, start=slot.computed)

    def _fails(self, slot: Slot) -> bool:
        """Whether it fails, and computes nothing any more: steps that were sent before that was
        known begin behind tokens that it never gets."""
        return tuple(slot.tokens[: slot.new.num_prompt]) in self.fail_prompts

    def _work(self, work: SlotWork) -> SlotResult:
        number, start, count = work.slot, work.start, work.count
        slot = self.slots[number]
        size = self.setup.block_size
        end = start + count
        assert count > 0
        prompt = slot.tokens[: slot.new.num_prompt]
        if self._fails(slot):
            # Also a step that was sent before the first failure was known.
            return SlotResult(number, error="this prompt always fails", drafted=work.draft)
        if slot.computed is not None:
            assert start == slot.computed, "tokens are skipped, or computed twice"
        assert end <= len(slot.tokens) <= self.setup.max_model_len
        assert end <= len(slot.tables[0]) * size, "no block for a token"
        self._advance_state(slot, start, end)
        self.media.check_work(slot.new.media, start, end)
        groups, known = paged(self.groups), _marks(slot)
        for number_of, (group, table) in enumerate(zip(groups, slot.tables, strict=True)):
            for at in range(start, end):
                self._write(table, at, (number_of, tuple(known[: at + 1])))
            for at in range(group.first_seen(start), end):
                row = (number_of, tuple(known[: at + 1]))
                assert self.rows[table[at // size]][at % size] == row, "it is another's block"
        slot.computed = end
        told = self._told(slot, prompt, start, end)
        if end < len(slot.tokens):
            assert not work.draft, "drafts where the newest token isn't computed"
            return SlotResult(number, prompt_logprobs=told)
        drafted, right = self.drafts(work.draft) if work.draft else (0, 0)
        assert 0 <= right <= drafted <= work.draft
        if slot.grammar is not None and self.late():
            self._write_wrong(slot, end, end + drafted)
            slot.computed -= 1
            return SlotResult(number, deferred=True, prompt_logprobs=told, drafted=drafted)
        seen = adapted(marks(prompt, slot.new.media), slot.new.adapter)
        result = self._sample(slot, number, seen)
        more = self._more(slot, number, right)
        self._write_wrong(slot, end + len(more), end + drafted)
        return msgspec.structs.replace(
            result,
            prompt_logprobs=told,
            more=[each.token for each in more],
            more_logprobs=None if result.logprobs is None else [each.logprobs for each in more],
            drafted=drafted,
            proposed=self.proposes(),
        )

    def _more(self, slot: Slot, number: int, most: int) -> list[SlotResult]:
        """Tokens behind as many right drafts. It goes on where a sequence would have ended, but for
        EOS under a grammar; and a late mask is the end of it."""
        found: list[SlotResult] = []
        while len(found) < most and not (
            slot.grammar is not None and (slot.tokens[-1] in EOS or self.late())
        ):
            at = len(slot.tokens) - 1
            for number_of, table in enumerate(slot.tables):
                row = (number_of, tuple(_marks(slot)))
                self._write(table, at, row)
            slot.computed = at + 1
            self._advance_state(slot, at, at + 1)
            prompt = marks(slot.tokens[: slot.new.num_prompt], slot.new.media)
            found.append(self._sample(slot, number, adapted(prompt, slot.new.adapter)))
        return found

    def _write(self, table: list[int], at: int, row: tuple[int, tuple[Mark, ...]]) -> None:
        """Row of token `at`."""
        size = self.setup.block_size
        assert at < len(table) * size, "no block for a token"
        rows = self.rows.setdefault(table[at // size], {})
        rows.pop(STATE, None)
        rows[at % size] = row

    def _write_wrong(self, slot: Slot, start: int, end: int) -> None:
        """Drafts that were none of the sequence's tokens have been computed, too."""
        for number, table in enumerate(slot.tables):
            for at in range(start, end):
                self._write(table, at, (number, (WRONG,)))
        for tokens, blocks in slot.checkpoints.items():
            if start < tokens <= end:
                for piece, block in enumerate(blocks):
                    self.rows[block] = {STATE: (len(self.groups) + piece, (WRONG,))}

    def _told(
        self, slot: Slot, prompt: list[int], start: int, end: int
    ) -> list[TokenLogprobs] | None:
        wanted = slot.new.prompt_from
        if wanted is None:
            return None
        assert slot.new.sampling.prompt_logprobs is not None
        assert slot.new.index == 0
        assert start <= wanted - 1 or start >= wanted, "a row that tells was not computed"
        return [
            told_of(prompt, at + 1) for at in range(start, end) if wanted <= at + 1 < len(prompt)
        ]

    def _sample(self, slot: Slot, number: int, prompt: list[Mark]) -> SlotResult:
        sampling = slot.new.sampling
        emitted = slot.tokens[slot.new.num_prompt :]
        held_back = frozenset(sampling.held_back)
        token = next_token(prompt, emitted, slot.new.index, sampling, held_back, slot.grammar)
        slot.tokens.append(token)
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = TokenLogprobs(-float(len(emitted)), (token,), (-0.5,))
        return SlotResult(number, token, logprobs)


def _with_more(result: SlotResult, more: list[SlotResult]) -> SlotResult:
    if not more:
        return result
    return msgspec.structs.replace(
        result,
        more=[each.token for each in more],
        more_logprobs=None if result.logprobs is None else [each.logprobs for each in more],
        proposed=more[-1].proposed,
    )


def _marks(slot: Slot) -> list[Mark]:
    """Its tokens, and in place of placeholders what they stand for."""
    return adapted(marks(slot.tokens, slot.new.media), slot.new.adapter)
