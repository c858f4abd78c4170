"""Pictures before a decoder with recurrent layers: a sequence that starts from a checkpoint of
states within an item goes on with the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from penstock.model.kv_layout import paged
from penstock.protocol.media import Media
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.sampler import choose
from penstock_worker.vision.sight import Sight
from tests.worker.driver import GREEDY, LogitsOf
from tests.worker.runners import host_runner
from tests.worker.vision.picture_runners import encodings, load, on_cpu, with_states
from tests.worker.vision.pictures import Part, picture, prompt_of, words
from tests.worker.vision.vision_cases import CASES, POSITIONS, both

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

EVERY, BLOCKS = 16, 128


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("case", ["qwen3.5", "qwen3.5-moe"])
def test_behind_a_checkpoint_within_an_item(case: str, backend: str, tmp_path: Path) -> None:
    """Another sequence has the keys and values of the first blocks, and the states behind them."""
    _, ours = both(case)
    preparation = CASES[case].preparation
    seen, media = LogitsOf(), encodings(ours)
    forward, states, groups = with_states(on_cpu(ours, backend=backend), BLOCKS, EVERY)
    bounds = SlotBounds(8, BLOCKS, 16, ours.config.vocab_size, POSITIONS)
    media.see_with(Sight(ours.tower, preparation, forward.count_layer))
    runner = host_runner(
        forward,
        choose(1),
        Slots(replace(bounds, groups=paged(groups))),
        observer=seen,
        media=media,
        states=states,
    )
    large, small = (picture(preparation, size, size) for size in (4, 1))
    parts: list[Part] = [words(13, 1), large, words(6, 2), small, words(21, 3)]
    load(runner, tmp_path, large, small)
    tokens, shown = prompt_of(parts)
    assert shown is not None
    pieces, count = groups[-1].blocks, -(-len(tokens) // 16)
    free = iter(range(BLOCKS))
    blocks = [next(free) for _ in range(count)]
    checkpoints = [[next(free) for _ in range(pieces)] for _ in range(count)]
    plan = [new(0, tokens, shown, blocks, [block for each in checkpoints for block in each])]
    names = [large.item.name, small.item.name]
    runner.execute(Plan(1, 0, [], plan, [SlotWork(0, 0, len(tokens))], encode=names))
    whole = seen.of(0)
    for number, at in enumerate((16, 32), start=1):
        assert shown.spans[0].offset < at < shown.spans[0].end
        held = at // 16
        own = blocks[:held] + [next(free) for _ in range(count - held)]
        begin = checkpoints[held - 1] + [next(free) for _ in range(pieces * (count - held))]
        again = new(number, tokens, shown, own, begin, at)
        work = SlotWork(number, at, len(tokens) - at)
        runner.execute(Plan(1 + number, number, [], [again], [work]))
        found = [seen.by_slot[number][place] for place in range(at, len(tokens))]
        assert torch.equal(torch.stack(found), whole[at:])


def new(
    slot: int, tokens: list[int], media: Media, blocks: list[int], states: list[int], at: int = 0
) -> NewSequence:
    return NewSequence(
        slot, tokens, len(tokens), 0, GREEDY, blocks, media=media, states=states, state_at=at
    )
