"""Encoder-decoder models: each prompt begins with one item's placeholders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import StartupError
from penstock.model.layer_spec import CrossAttentionSpec
from penstock.protocol.media import Media, MediaSpan
from penstock_engine.facts import EngineFacts
from tests.engine.fake_media import picture, shown
from tests.engine.harness import Harness
from tests.engine.histories.media import MediaWalker
from tests.engine.media.media_requests import error_of, finish_of
from tests.engine.small_facts import facts
from tests.engine.walked_harness import Seeded
from tests.engine.walks import check_replay

ROWS = 5
PROMPT = [9] * ROWS + [3, 4]
SOUND = picture(1, ROWS)


def harness() -> Harness:
    h = Harness(block_size=4)
    h.media_rows, h.encoder_rows = 2 * ROWS, ROWS
    return h


def test_a_prompt_that_begins_with_its_item_is_served_and_its_blocks_are_shared() -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    scores = []
    for number in range(2):
        prompt = [*PROMPT, number]
        scores.append(
            h.submit(front, prompt, max_tokens=3, ignore_eos=True, media=shown((SOUND, 0)))
        )
        h.run()
    assert [finish_of(score) for score in scores] == ["length"] * 2
    assert [score.cached for score in scores] == [0, 4]
    assert h.worker is not None
    assert sum(h.worker.media.encoded.values()) == 1


def whispers(**settings: Any) -> EngineFacts:
    """Facts of an encoder-decoder model. settings: parts of the engine's, with fields to change."""
    made = facts()
    cross = CrossAttentionSpec(rows=ROWS)
    config = msgspec.structs.replace(made.model.config, cross_attention=cross)
    parts = {
        part: msgspec.structs.replace(getattr(made.config, part), **changes)
        for part, changes in settings.items()
    }
    return msgspec.structs.replace(
        made,
        model=msgspec.structs.replace(made.model, config=config),
        config=msgspec.structs.replace(made.config, **parts),
    )


def test_settings_under_which_it_cant_be_served_are_refused_at_the_start() -> None:
    for rows in (ROWS, None):
        kept = whispers(cache={"encoder_cache_rows": rows}).setup(1).encoder_cache_rows
        assert kept == rows
    with pytest.raises(StartupError, match=r"encoder_cache_rows is 4; .*at least 5 are needed"):
        whispers(cache={"encoder_cache_rows": ROWS - 1})
    with pytest.raises(StartupError, match="convert embed; tiny is an encoder-decoder model"):
        whispers(model={"convert": "embed"})


BAD: dict[str, tuple[list[int], Media | None]] = {
    "text": (PROMPT, None),
    "behind a word": ([3, *PROMPT], shown((SOUND, 1))),
    "two": (PROMPT[:ROWS] * 2 + [3], shown((SOUND, 0), (picture(2, ROWS), ROWS))),
    "a part": (PROMPT, Media((SOUND,), (MediaSpan(0, 0, ROWS - 1),))),
    "longer": ([9] * (ROWS + 1) + [3], shown((picture(1, ROWS + 1), 0))),
    "nothing behind": (PROMPT[:ROWS], shown((SOUND, 0))),
}


@pytest.mark.parametrize("case", BAD)
def test_other_prompts_are_refused_whether_a_worker_is_there_or_comes(case: str) -> None:
    prompt, media = BAD[case]
    h = harness()
    front = h.connect()
    early = h.submit(front, prompt, max_tokens=3, media=media)
    h.start_worker()
    assert error_of(early)
    late = h.submit(front, prompt, max_tokens=3, media=media)
    assert late.rejected is not None
    good = h.submit(front, PROMPT, max_tokens=3, ignore_eos=True, media=shown((SOUND, 0)))
    h.run()
    assert finish_of(good) == "length"


class EncoderWalker(MediaWalker):
    """All requests begin with one of a few items."""

    def __init__(self, choose: Seeded) -> None:
        super().__init__(choose)
        self.h.whole_spans, self.h.encoder_rows = False, ROWS

    def submit(self) -> None:
        front, whole = self._front(), self.choose.whole
        if front is None:
            return
        prompt = [9] * ROWS + self._prompt(whole(1, 20))
        self.h.submit(
            front,
            prompt,
            n=1 + whole(0, 3) // 3,
            seed=whole(0, 9),
            tenant=("", "a")[whole(0, 1)],
            media=shown((picture(whole(0, 4), ROWS), 0)),
            max_tokens=whole(0, 14),
        )


def test_random_histories_keep_their_books_and_replay(tmp_path: Path) -> None:
    met = Counter[str]()
    for seed in range(4):
        walker = EncoderWalker(Seeded(seed))
        folder = tmp_path / str(seed)
        folder.mkdir()
        check_replay(walker, folder, 150)
        met["reused"] += walker.h.num_reused
        walker.end()
        met += walker.met
    assert met["waited for media"]
    assert met["killed with media"]
    assert met["reused"]
