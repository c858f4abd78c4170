"""Spans of placeholders that see themselves as a whole."""

from __future__ import annotations

import msgspec

from penstock.model.kv_layout import KVGroup
from penstock.protocol.media import Media
from tests.engine.fake_media import picture, shown
from tests.engine.harness import Harness
from tests.engine.media.media_requests import SLOT, ask, finish_of, harness
from tests.engine.scores import Front, RequestScore


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


def joined(*placed: tuple[int, int]) -> Media:
    """Pictures of four rows, by their numbers, at these tokens."""
    media = shown(*((picture(number), offset) for number, offset in placed))
    return msgspec.structs.replace(media, joined=True)


def asked(
    h: Harness, front: Front, *placed: tuple[int, int], between: int = 5, behind: int = 6
) -> RequestScore:
    """Three tokens, pictures, and what is between and behind them."""
    prompt = [3, 4, 3, *[between] * 17, *[behind] * 4]
    for _, offset in placed:
        prompt[offset : offset + 4] = [SLOT] * 4
    return h.submit(front, prompt, media=joined(*placed), max_tokens=4, ignore_eos=True)


def test_joined_spans_are_computed_in_one_step_with_the_text_between_them() -> None:
    """Beside others who decode, behind a prefix that ends in front of them, and when a step has
    room for one of the pictures only."""
    h = harness(max_num_batched_tokens=18, block_size=2)
    h.whole_spans = True
    front = h.connect()
    h.start_worker()
    texts = [h.submit(front, [number, 1], max_tokens=30, ignore_eos=True) for number in range(3)]
    h.run_step()
    for placed in (((1, 3), (2, 16)), ((1, 3), (2, 16)), ((3, 3), (1, 9), (2, 16))):
        score = asked(h, front, *placed)
        h.run()
        assert finish_of(score) == "length"
    assert [finish_of(text) for text in texts] == ["length"] * 3
    wide = asked(h, front, (1, 2), (2, 17))
    assert wide.rejected is not None
    assert "its media with the text between them take 19 tokens" in wide.rejected.message


def test_what_joined_spans_share_is_all_of_them_or_nothing() -> None:
    """A later picture, and the text in front of it, change the first one's keys and values."""
    h = harness(block_size=1, max_num_batched_tokens=24)
    h.whole_spans = True
    front = h.connect()
    h.start_worker()

    def cached(*placed: tuple[int, int], **text: int) -> int:
        score = asked(h, front, *placed, **text)
        h.run()
        assert finish_of(score) == "length"
        assert score.cached is not None
        return score.cached

    assert cached((1, 3), (2, 12)) == 0
    assert cached((1, 3), (2, 12)) == 23, "all but the last token"
    assert cached((1, 3), (3, 12)) == 3, "another picture behind"
    assert cached((1, 3), (2, 13)) == 3, "the same one elsewhere"
    assert cached((1, 3), (2, 12), between=8) == 3, "other text between"
    assert cached((1, 3), (2, 12), behind=8) == 20, "all before what differs"
    assert cached((1, 3), (2, 12), (3, 17)) == 3, "one more"
    assert cached((1, 3)) == 3, "one less"
