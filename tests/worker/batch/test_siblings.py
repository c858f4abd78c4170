"""Sequences of one request that refer to the slot that has their prompt, beside ones in full."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.protocol.common import LogitsAdjustments, Pooling, TokenSampling
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.slots import PlanError, SlotBounds, Slots
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.steps.runner import StepRunner
from tests.worker.driver import make_runner
from tests.worker.grammar.grammar_tools import EVEN, Evens, compile_now

pytestmark = pytest.mark.timeout(240)

PROMPT = [5, 6, 7, 8, 9]
RULED = TokenSampling(
    11,
    temperature=1.3,
    logprobs=2,
    adjustments=LogitsAdjustments(
        presence=0.5, repetition=1.2, bias={3: 2.0}, bad_words=((9, 3), (3,), (4, 5, 6))
    ),
)
NOTHING = TokenSampling(0)
"""What a message has to hold where nobody looks at it."""


def in_full(slot: int, index: int, emitted: list[int], blocks: list[int]) -> NewSequence:
    return NewSequence(slot, PROMPT + emitted, len(PROMPT), index, RULED, blocks)


def beside(
    slot: int, index: int, emitted: list[int], blocks: list[int], like: int = 0
) -> NewSequence:
    return NewSequence(slot, emitted, 0, index, NOTHING, blocks, like=like)


def bounded() -> Slots:
    return Slots(SlotBounds(slots=4, blocks=32, block_size=4, vocab=300, tokens=20))


def admit(slots: Slots, *admitted: NewSequence, released: list[int] | None = None) -> None:
    slots.apply(Plan(1, 0, released or [], list(admitted), []))


def steps(runner: StepRunner, admitted: list[NewSequence]) -> list[Result]:
    """The prompt and five tokens more of each of three sequences."""
    results = [
        runner.execute(
            Plan(1, 0, [], admitted, [SlotWork(0, 0, 5), SlotWork(1, 0, 7), SlotWork(2, 0, 6)])
        )
    ]
    for step in range(2, 7):
        works = [SlotWork(slot, length + step - 2, 1) for slot, length in enumerate((5, 7, 6))]
        results.append(runner.execute(Plan(step, step - 1, [], [], works)))
    return results


def test_they_say_what_they_say_in_full(tiny_models: dict[torch.dtype, DecoderModel]) -> None:
    """One refers to a sibling that does so itself, in the same plan."""
    model = tiny_models[torch.float32]
    blocks = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    emitted = [[], [4, 5], [9]]
    full = [in_full(slot, slot, emitted[slot], blocks[slot]) for slot in range(3)]
    short = [
        full[0],
        beside(1, 1, emitted[1], blocks[1]),
        beside(2, 2, emitted[2], blocks[2], like=1),
    ]
    expected, given = (
        [result.slots for result in steps(make_runner(model, block_size=4), admitted)]
        for admitted in (full, short)
    )
    assert given == expected


def test_what_the_request_brought_is_made_once() -> None:
    slots = bounded()
    admit(slots, in_full(0, 0, [3], [0, 1]), beside(1, 1, [], [2, 3]))
    first, second = slots[0].adjustments, slots[1].adjustments
    assert first is not None
    assert second is not None
    assert second._request is first._request
    assert second.penalties is not None
    assert second.penalties.ids.tolist() == PROMPT, "what its sibling has emitted is not its own"
    assert not second.penalties.counts.any()
    second.advance(4)
    assert 4 not in first.penalties.ids


def test_the_tokens_are_its_own() -> None:
    slots = bounded()
    admit(slots, in_full(0, 0, [], [0, 1]), beside(1, 1, [4], [2, 3]))
    slots[1].append(8)
    slots[0].append(2)
    assert slots[0].token_ids == [*PROMPT, 2]
    assert slots[1].token_ids == [*PROMPT, 4, 8]
    assert slots[1].num_prompt == len(PROMPT)
    assert slots[1].sampling is RULED


def test_pooling_is_its_siblings() -> None:
    slots, pooling = bounded(), Pooling("embed")
    first = NewSequence(0, PROMPT, len(PROMPT), 0, NOTHING, [0, 1], pooling=pooling)
    admit(slots, first, beside(1, 1, [], [2, 3]))
    assert slots[1].pooling is pooling


MISFITS: dict[str, tuple[list[int], list[NewSequence]]] = {
    "slot 1 is to be like slot 3, which holds no sequence": ([], [beside(1, 1, [], [2], like=3)]),
    "slot 1 is to be like slot 2, which holds no": (
        [],
        [beside(1, 1, [], [2], like=2), in_full(2, 0, [], [3])],
    ),
    "slot 1 is to be like slot 1, which holds no": ([], [beside(1, 1, [], [2], like=1)]),
    "slot 1 is to be like slot 0, which holds no": ([0], [beside(1, 1, [], [2])]),
    "5 prompt tokens of 21; at most 20": ([], [beside(1, 1, [4] * 16, [2])]),
    "slot 1: a token id is not in": ([], [beside(1, 1, [300], [2])]),
    "slot 1: block 32 is not in": ([], [beside(1, 1, [], [32])]),
}


@pytest.mark.parametrize("message", MISFITS)
def test_misfits_are_named(message: str) -> None:
    slots = bounded()
    admit(slots, in_full(0, 0, [], [0, 1]))
    released, admitted = MISFITS[message]
    with pytest.raises(PlanError, match=message):
        admit(slots, *admitted, released=released)


def test_the_grammar_is_its_siblings_even_after_it_was_dropped() -> None:
    grammars = SlotGrammars(Evens(8), budget=60.0)
    try:
        compile_now(grammars, 1, EVEN)
        first = NewSequence(0, PROMPT, len(PROMPT), 0, NOTHING, [0], grammar=1)
        plain = NewSequence(2, PROMPT, len(PROMPT), 0, NOTHING, [0])
        grammars.take(Plan(1, 0, [], [first, plain], []))
        grammars.drop(1)
        second = beside(1, 1, [4], [1])
        grammars.take(Plan(2, 1, [], [second, beside(3, 1, [4], [1], like=2)], []))
        masks = grammars.masks([0, 1, 2, 3])
        allowed = {slot: np.flatnonzero(mask.allowed).tolist() for slot, mask in masks.items()}
        assert allowed == {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}
    finally:
        grammars.close()
