"""Live states and their checkpoints: a token is taken up once, whatever happens to its step."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.to_worker import Copy, SlotWork
from penstock_worker.batch.slots import PlanError
from penstock_worker.forward.interface import Batch, StepCancelled
from penstock_worker.states import snapshots
from penstock_worker.states.slot_states import CheckpointBlocks
from tests.met import met
from tests.worker.states.recurrent_sequences import (
    EVERY,
    SIZES,
    VOCAB,
    HalfRight,
    Toy,
    followed,
    sequence,
)

TOKENS = [3 + at * 7 % 40 for at in range(30)]
BLOCKS = list(range(20, 28))
"""Blocks of the checkpoints after tokens 8, 16, 24 and 32."""

EITHER = pytest.mark.parametrize("program", [False, True], ids=["by layers", "program"])


@EITHER
@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_tokens_in_any_chunks_and_company(program: bool, chunks: list[int]) -> None:
    toy, start = Toy(1 if program else 2, program=program), 0
    admitted = (sequence(2, TOKENS, BLOCKS), sequence(0, TOKENS[::-1], list(range(40, 48))))
    for count in chunks:
        count = min(count, len(TOKENS) - start)
        if not count:
            break
        works = (SlotWork(2, start, count), SlotWork(0, start, count))
        toy.run(*works, admitted=admitted)
        admitted, start = (), start + count
    toy.check(2, TOKENS[:start])
    met("a checkpoint within a chunk", start > EVERY and len(chunks) > 1)
    toy.check(0, TOKENS[::-1][:start])


@pytest.mark.parametrize("at", [8, 16, 24])
@EITHER
def test_another_slot_goes_on_behind_a_checkpoint(program: bool, at: int) -> None:
    toy = Toy(program=program)
    toy.run(SlotWork(1, 0, 30), admitted=(sequence(1, TOKENS, BLOCKS),))
    found = BLOCKS[(at // EVERY - 1) * 2 :][:2]
    others = list(range(40, 48 - at // EVERY * 2))
    tokens = [*TOKENS[:at], 9, 8, 7, 6]
    new = sequence(4, tokens, found + others, state_at=at)
    toy.run(SlotWork(4, at, 3), admitted=(new,), released=(1,))
    toy.run(SlotWork(4, at + 3, 1))
    toy.check(4, tokens, first=at)


@EITHER
def test_a_slot_that_was_used_before_starts_without_a_state(program: bool) -> None:
    toy = Toy(program=program)
    toy.run(SlotWork(1, 0, 30), admitted=(sequence(1, TOKENS, BLOCKS),))
    toy.run(SlotWork(1, 0, 5), admitted=(sequence(1, TOKENS[5:], BLOCKS),), released=(1,))
    toy.check(1, TOKENS[5:10])


@EITHER
def test_a_checkpoint_goes_to_the_host_and_back(program: bool) -> None:
    toy = Toy(program=program)
    toy.run(SlotWork(1, 0, 30), admitted=(sequence(1, TOKENS, BLOCKS),))
    away = (Copy("out", BLOCKS[2], 0), Copy("out", BLOCKS[3], 3))
    back = (Copy("in", 0, 50), Copy("in", 3, 33))
    toy.run(SlotWork(3, 0, 1), admitted=(sequence(3, [5], []),), released=(1,), copies=away)
    for part in toy.forward.parts:
        part[BLOCKS] = 255
    new = sequence(1, TOKENS, [50, 33, 60, 61, 62, 63], state_at=16)
    toy.run(SlotWork(1, 16, 14), admitted=(new,), copies=back)
    toy.check(1, TOKENS, first=16)


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("count", [1, 6])
@EITHER
def test_works_are_repeated_after_a_step_that_failed(program: bool, layer: int, count: int) -> None:
    """Twice: first for all, then for one of the two."""
    toy = Toy(program=program)
    toy.run(
        SlotWork(1, 0, 7),
        SlotWork(2, 0, 7),
        admitted=(sequence(1, TOKENS, BLOCKS), sequence(2, TOKENS[3:], list(range(40, 48)))),
    )

    def fails(at: int, batch: Batch) -> bool:
        return at == layer and (len(batch.counts) > 1 or batch.slots[0] == 2)

    toy.forward.fails = fails
    result = toy.run(SlotWork(1, 7, count), SlotWork(2, 7, count))
    assert [slot.error is None for slot in result.slots] == [True, False]
    toy.forward.fails = lambda at, batch: False
    toy.run(SlotWork(1, 7 + count, 9))
    toy.check(1, TOKENS[: 16 + count])
    new = sequence(3, TOKENS, [*BLOCKS[2:4], 60, 61, 62, 63], state_at=16)
    if count == 6:
        toy.run(SlotWork(3, 16, 4), admitted=(new,))
        toy.check(3, TOKENS[:20], first=16)


@pytest.mark.parametrize("count", [1, 9])
@EITHER
def test_a_first_work_is_repeated_too(program: bool, count: int) -> None:
    toy = Toy(program=program)
    seen: list[int] = []

    def fails(layer: int, batch: Batch) -> bool:
        seen.append(layer)
        return seen == [0, 2]

    toy.forward.fails = fails
    result = toy.run(SlotWork(1, 0, count), admitted=(sequence(1, TOKENS, BLOCKS),))
    if result.slots[0].error is None:
        toy.run(SlotWork(1, count, 3))
        toy.check(1, TOKENS[: count + 3])
    else:
        assert len(seen) == 2, "one by one is how it ran"


def test_a_scan_that_fails_halfway_ends_its_own_sequence_alone() -> None:
    toy = Toy()
    admitted = (sequence(1, TOKENS, BLOCKS), sequence(2, TOKENS[3:], list(range(40, 48))))
    toy.run(SlotWork(1, 0, 7), SlotWork(2, 0, 7), admitted=admitted)
    tripped: list[int] = []

    def in_scan(layer: int, rows: torch.Tensor) -> bool:
        tripped.append(layer)
        return len(tripped) == 4  # The second layer of the second sequence, the first time.

    toy.forward.in_scan = in_scan
    result = toy.run(SlotWork(1, 7, 1), SlotWork(2, 7, 1))
    [one, other] = result.slots
    assert one.error is None
    assert other.error is not None
    assert "the state of layer 2 is lost" in other.error
    toy.run(SlotWork(1, 8, 5))
    toy.check(1, TOKENS[:13])


@pytest.mark.parametrize("count", [1, 5, 8])
@EITHER
def test_the_last_token_may_be_asked_for_again(program: bool, count: int) -> None:
    """The engine core asks for it when a grammar's mask was late."""
    toy = Toy(program=program)
    toy.run(SlotWork(1, 0, 8), admitted=(sequence(1, TOKENS, BLOCKS),))
    toy.run(SlotWork(1, 8, count))
    for _ in range(2):
        toy.kind.slots[1].computed = 8 + count - 1
        toy.run(SlotWork(1, 8 + count - 1, 1))
    toy.run(SlotWork(1, 8 + count, 10))
    toy.check(1, TOKENS[: 18 + count])
    new = sequence(3, TOKENS, [*BLOCKS[2:4], 60, 61, 62, 63], state_at=16)
    toy.run(SlotWork(3, 16, 4), admitted=(new,))
    toy.check(3, TOKENS[:20], first=16)


@EITHER
def test_tokens_are_never_computed_behind_another_state(program: bool) -> None:
    toy = Toy(program=program)
    toy.run(SlotWork(1, 0, 8), admitted=(sequence(1, TOKENS, BLOCKS),))
    for start, count in ((6, 2), (7, 2), (9, 1)):
        toy.kind.slots[1].computed = start
        toy.kind.slots[1].failed = None
        error = toy.run(SlotWork(1, start, count)).slots[0].error
        assert error is not None
        assert f"that of 8 tokens; tokens follow {start}" in error


@pytest.mark.parametrize(
    ("states", "state_at", "count", "wrong"),
    [
        (BLOCKS[:3], 0, 4, "3 blocks for checkpoints of 2 each"),
        (BLOCKS[:1], 8, 4, "its checkpoint has 1 blocks"),
        ([], 12, 4, "its checkpoint has 0 blocks"),
        (BLOCKS[:2], 0, 16, "16 tokens, and no blocks for checkpoints behind 8"),
    ],
)
@EITHER
def test_a_plan_that_does_not_fit_is_refused(
    program: bool, states: list[int], state_at: int, count: int, wrong: str
) -> None:
    toy = Toy(program=program)
    new = sequence(1, TOKENS, states, state_at=state_at)
    with pytest.raises(PlanError, match=wrong):
        toy.run(SlotWork(1, state_at, count), admitted=(new,))


@EITHER
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
    st.integers(1, 29) | st.sampled_from([EVERY, 2 * EVERY, 3 * EVERY]),
)
def test_another_slot_goes_on_behind_a_tail(program: bool, chunks: list[int], at: int) -> None:
    """Which lies anywhere, and was written while tokens were computed in any chunks."""
    toy, start, tail = Toy(program=program), 0, [50, 53] if at % EVERY else []
    new = msgspec.structs.replace(sequence(1, TOKENS, BLOCKS), tail=tail, tail_at=at)
    admitted = (new,)
    for count in [*chunks, 30]:
        count = min(count, len(TOKENS) - start)
        if count:
            toy.run(SlotWork(1, start, count), admitted=admitted)
            admitted, start = (), start + count
    toy.check(1, TOKENS)
    found = tail or BLOCKS[(at // EVERY - 1) * 2 :][:2]
    met("between two checkpoints", tail)
    met("at a checkpoint", not tail)
    others = list(range(40, 40 + 2 * (4 - at // EVERY)))
    tokens = [*TOKENS[:at], *range(9, 9 + 31 - at)]
    other = sequence(4, tokens, found + others, state_at=at)
    toy.run(SlotWork(4, at, 31 - at), admitted=(other,), released=(1,))
    toy.check(4, tokens, first=at)


@pytest.mark.parametrize(
    ("tail", "tail_at", "state_at", "wrong"),
    [
        ([50], 5, 0, "its tail has 1 blocks"),
        ([50, 51], 16, 0, "no tail behind token 16"),
        ([50, 51], 7, 8, "no tail behind token 7"),
        ([], 0, -8, "behind token -8: there is no checkpoint"),
        ([50, 99], 5, 0, "block 99 is not in"),
    ],
)
def test_a_tail_that_can_not_be_is_refused(
    tail: list[int], tail_at: int, state_at: int, wrong: str
) -> None:
    toy = Toy()
    new = sequence(1, TOKENS, BLOCKS, state_at=state_at)
    new = msgspec.structs.replace(new, tail=tail, tail_at=tail_at)
    with pytest.raises(PlanError, match=wrong):
        toy.run(SlotWork(1, max(0, state_at), 4), admitted=(new,))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
)
def test_checkpoints_fill_blocks_byte_by_byte(widths: list[int], sizes: list[int]) -> None:
    parts = [np.zeros((100, width), np.uint8) for width in widths]
    blocks = CheckpointBlocks(parts, sizes)
    pieces = -(-4 * sum(sizes) // sum(widths))
    met("a layer over several blocks", any(4 * size > sum(widths) for size in sizes))
    places = [(at * 37 + 5) % 100 for at in range(pieces)]
    states = [torch.arange(1, size + 1) * (layer + 1.5) for layer, size in enumerate(sizes)]
    for layer in reversed(range(len(sizes))):
        blocks.write(places, layer, states[layer])
    stored = np.concatenate([np.concatenate([part[at] for part in parts]) for at in places] or [[]])
    whole = torch.cat(states).numpy().view(np.uint8)
    assert np.array_equal(stored[: len(whole)], whole)
    read = torch.zeros(sum(sizes))
    blocks.read(places, read)
    assert torch.equal(read, torch.cat(states))


def test_all_slots_count() -> None:
    assert Toy().states.nbytes == 6 * 4 * sum(SIZES)
    assert Toy(program=True).states.nbytes == 6 * 4 * (sum(SIZES) + 2 * VOCAB)


def test_a_program_that_is_broken_off_ends_its_sequences() -> None:
    """Nobody knows how far it came."""
    toy = Toy(program=True)
    admitted = (sequence(1, TOKENS, BLOCKS), sequence(2, TOKENS[3:], list(range(40, 48))))
    toy.run(SlotWork(1, 0, 7), SlotWork(2, 0, 7), admitted=admitted)

    def cancelled(layer: int, batch: Batch) -> bool:
        raise StepCancelled

    toy.forward.fails = cancelled
    with pytest.raises(StepCancelled):
        toy.run(SlotWork(1, 7, 1))
    toy.forward.fails = lambda layer, batch: False
    toy.kind.slots[1].failed = None
    error = toy.run(SlotWork(1, 7, 1)).slots[0].error
    assert error is not None
    assert "its state is lost" in error
    toy.run(SlotWork(2, 7, 4))
    toy.check(2, TOKENS[3:14])


# ---- drafts


OUTPUTS = {1: followed(TOKENS[:3], 24), 2: followed(TOKENS[5:9], 24)}
OTHERS = [40, 41, 42, 43, 44, 45, 46, 47]


def drafted(toy: Toy, blocks: dict[int, list[int]], steps: int) -> dict[int, list[int]]:
    """Runs both sequences with up to three drafts in each step. Returns their tokens."""
    known = {slot: tokens[: 3 + (slot == 2)] for slot, tokens in OUTPUTS.items()}
    admitted = tuple(sequence(slot, known[slot], blocks[slot]) for slot in known)
    works = tuple(SlotWork(slot, 0, len(tokens)) for slot, tokens in known.items())
    for _ in range(steps):
        result = toy.run(*works, admitted=admitted)
        for each in result.slots:
            assert each.token is not None, each.error
            known[each.slot] += [each.token, *each.more]
        works = tuple(SlotWork(n, len(each) - 1, 1, draft=3) for n, each in known.items())
        admitted = ()
    return known


@pytest.mark.parametrize("right", [[0], [3], [2, 0, 1, 3]], ids=str)
@pytest.mark.parametrize("failing", [False, True], ids=["", "steps fail"])
@EITHER
def test_states_go_back_behind_wrong_drafts(program: bool, failing: bool, right: list[int]) -> None:
    """Checkpoints lie between them, and hold what is behind the true tokens. Every other step fails
    for both together."""
    toy = Toy(program=program, oracle=HalfRight(OUTPUTS, right))
    count = 0

    def fails(layer: int, batch: Batch) -> bool:
        nonlocal count
        count += layer == 2 and len(batch.counts) > 1
        return failing and layer == 2 and len(batch.counts) > 1 and count % 2 == 0

    toy.forward.fails = fails
    known = drafted(toy, {1: BLOCKS[:6], 2: BLOCKS[6:] + OTHERS[:4]}, 5)
    for slot, tokens in known.items():
        assert tokens == OUTPUTS[slot][: len(tokens)]
        toy.check(slot, tokens[:-1])
    assert len(known[1]) > 8 or right == [0]
    assert len(toy.states._snapshots._free) == 18
    toy.forward.fails = lambda layer, batch: False
    if len(known[1]) > 8:
        tokens = [*known[1][:8], 5, 6]
        new = sequence(3, tokens, [*BLOCKS[:2], *OTHERS[4:]], state_at=8)
        toy.run(SlotWork(3, 8, 2), admitted=(new,))
        toy.check(3, tokens, first=8)


@EITHER
def test_drafts_end_where_there_is_no_room_for_a_state(
    program: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a snapshot, nor blocks for the next checkpoint."""
    monkeypatch.setattr(snapshots, "MOST_BYTES", 1)
    toy = Toy(program=program, oracle=HalfRight(OUTPUTS, [3]))
    known = drafted(toy, {1: BLOCKS[:2], 2: BLOCKS[2:6]}, 2)
    assert {slot: len(tokens) for slot, tokens in known.items()} == {1: 3 + 1 + 4, 2: 4 + 1 + 1}
    monkeypatch.undo()
    toy = Toy(program=program, oracle=HalfRight(OUTPUTS, [3]))
    known = drafted(toy, {1: BLOCKS[:2], 2: []}, 2)
    assert {slot: len(tokens) for slot, tokens in known.items()} == {1: 3 + 1 + 4, 2: 4 + 1 + 3}
