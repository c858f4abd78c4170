"""Spans of placeholders that see themselves as a whole."""

from __future__ import annotations

from penstock.model.kv_layout import KVGroup
from tests.engine.fake_media import picture, shown
from tests.engine.harness import Harness
from tests.engine.media.media_requests import SLOT, ask, finish_of, harness
from tests.engine.scores import Front


def test_a_span_that_sees_itself_is_computed_in_one_step() -> None:
    """Also beside others who decode, and behind a prefix that ends in it."""
    h = harness(max_num_batched_tokens=8, block_size=3)
    h.whole_spans = True
    front = h.connect()
    h.start_worker()
    texts = [h.submit(front, [number, 1], max_tokens=20, ignore_eos=True) for number in range(3)]
    h.run_step()
    for _ in range(2):
        score = ask(h, front, picture(1, 7))
        h.run()
        assert finish_of(score) == "length"
    assert [finish_of(text) for text in texts] == ["length"] * 3
    tall = ask(h, front, picture(1, 9))
    assert tall.rejected is not None
    assert "one step" in tall.rejected.message


def whole_in_windows(num_blocks: int) -> tuple[Harness, Front]:
    """Blocks of one token, in a group that sees all and one that sees four."""
    h = harness(block_size=1)
    h.whole_spans, h.kv_groups = True, (KVGroup(), KVGroup(window=4))
    front = h.connect()
    h.start_worker(num_blocks)
    return h, front


def test_a_whole_span_is_not_cut_by_the_blocks_that_are_free_at_the_start() -> None:
    h, front = whole_in_windows(21)
    prompt = [*range(8), *[SLOT] * 4, *range(4)]
    score = h.submit(front, prompt, media=shown((picture(1), 8)), max_tokens=1, ignore_eos=True)
    (plan, _) = h.plans[0]
    assert plan.work[0].count == 8, "there are 10 blocks for each group"
    h.run()
    assert finish_of(score) == "length"


def test_a_whole_span_for_which_the_pool_is_too_small_is_refused() -> None:
    h, front = whole_in_windows(22)
    prompt = [*range(8), *[SLOT] * 8]
    score = h.submit(front, prompt, media=shown((picture(1, 8), 8)), max_tokens=1)
    assert score.rejected is not None
    assert "not enough KV blocks" in score.rejected.message
    text = h.submit(front, prompt, max_tokens=1)
    h.run()
    assert finish_of(text) is not None
