"""Pictures wholly inside the block that a prompt ends in, of which only a model with recurrent
layers keeps anything."""

from __future__ import annotations

import pytest

from penstock.model.kv_layout import FULL, KVGroup
from tests.engine.fake_media import picture, shown
from tests.engine.harness import Harness
from tests.engine.media.media_requests import SLOT
from tests.engine.scheduler.test_states import EVERY, PIECES, SIZE

PROMPT = [3, 4, 5, 6, SLOT, SLOT, 7]
"""A block, and a part of one in which a picture of two rows lies."""


@pytest.mark.parametrize("groups", [(FULL,), (FULL, KVGroup(window=6))])
def test_another_picture_in_the_last_block_is_another_prompt(groups: tuple[KVGroup, ...]) -> None:
    """Sequences of a request share the state at their prompt's end; a later request with the same
    token ids finds it only if it has the same picture."""
    h = Harness(block_size=SIZE, max_model_len=64)
    h.media_rows = 16
    h.kv_groups = (*groups, KVGroup(every=EVERY, blocks=PIECES))
    h.start_worker(100)
    front = h.connect()

    def cached(number: int) -> int | None:
        media = shown((picture(number, 2), 4))
        score = h.submit(front, PROMPT, n=2, media=media, max_tokens=2, ignore_eos=True)
        h.run()
        return score.cached

    assert [cached(1), cached(1), cached(2), cached(1)] == [0, 6, 0, 6]
