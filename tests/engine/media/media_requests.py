"""Requests with media, and what became of them."""

from __future__ import annotations

from penstock.protocol.media import MediaItem
from tests.engine.fake_media import shown
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore

TEXT = [3, 4, 5]
SLOT = 9
"""The placeholder's token."""


def harness(rows: int = 16, **options: object) -> Harness:
    h = Harness(**options)
    h.media_rows = rows
    return h


def ask(h: Harness, front: Front, *items: MediaItem, **more: object) -> RequestScore:
    """Text, each item in a span, and text behind them."""
    prompt, placed = list(TEXT), []
    for item in items:
        placed.append((item, len(prompt)))
        prompt += [SLOT] * item.rows + [6, 7]
    options = {"max_tokens": 4, "ignore_eos": True, **more}
    return h.submit(front, prompt, media=shown(*placed), **options)


def finish_of(score: RequestScore) -> str | None:
    (sequence,) = score.sequences.values()
    return None if sequence.terminal is None else sequence.terminal.finish


def error_of(score: RequestScore) -> str:
    (sequence,) = score.sequences.values()
    assert sequence.terminal is not None
    assert sequence.terminal.error_code == "invalid_media"
    return sequence.terminal.error or ""


def encodings(h: Harness) -> int:
    assert h.worker is not None
    return sum(h.worker.media.encoded.values())
