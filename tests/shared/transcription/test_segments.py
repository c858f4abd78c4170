"""Windows' tokens as segments, beside transformers'."""

from __future__ import annotations

import random

import pytest
import torch
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from penstock.model.transcription_facts import TranscriptionFacts
from penstock.transcription.transcriber import cut, cut_whole

FACTS = TranscriptionFacts(
    start=51,
    end=50,
    no_timestamps=59,
    first_timestamp=60,
    max_tokens=64,
    window_frames=3000,
    frames_per_second=100,
    timestamp_frames=2,
)


def theirs(tokens: list[int], frames: int) -> tuple[list[tuple[float, float, list[int]]], int]:
    segments, offset = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(tokens),
        seek_outputs=[{}],
        time_offset=torch.tensor([0.0], dtype=torch.float64),
        timestamp_begin=60,
        seek_num_frames=torch.tensor([frames]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 0),
    )
    found = [(float(s["start"]), float(s["end"]), s["tokens"].tolist()) for s in segments]
    return found, int(offset)


def transcript(rng: random.Random) -> list[int]:
    """Tokens as the rules let them be, cut anywhere."""
    tokens, time = [], 60
    for _ in range(rng.randrange(1, 6)):
        time += rng.randrange(0, 200)
        tokens.append(time)
        tokens += [rng.randrange(50) for _ in range(rng.randrange(1, 5))]
        time += rng.randrange(1, 200)
        tokens.append(time)
    return tokens[: rng.randrange(1, len(tokens) + 1)]


@pytest.mark.parametrize("frames", [3000, 1234])
def test_segments_are_those_of_transformers(frames: int) -> None:
    rng = random.Random(frames)
    for _ in range(300):
        tokens = transcript(rng)
        wanted, offset = theirs(tokens, frames)
        found = cut(tokens, frames, FACTS)
        assert found.frames == min(offset, frames)
        assert len(found.pieces) == len(wanted)
        for piece, (start, end, ids) in zip(found.pieces, wanted, strict=True):
            assert (piece.start, piece.end) == pytest.approx((start, end))
            # Theirs keeps the half pair behind the last segment.
            assert ids[: len(piece.token_ids)] == piece.token_ids
            assert len(ids) - len(piece.token_ids) in (0, 1)


def test_nothing_is_left_of_a_window_that_ends_at_a_pause() -> None:
    tokens = [60, 1, 2, 110, 110, 3, 160, 170, 4, 5]
    assert cut(tokens, 3000, FACTS).frames == 200
    found = cut_whole(tokens, 2500, FACTS)
    assert found.frames == 2500
    assert [(p.start, p.end, p.token_ids) for p in found.pieces] == [
        (0.0, 1.0, [60, 1, 2, 110]),
        (1.0, 2.0, [110, 3, 160]),
        (2.2, 25.0, [170, 4, 5]),
    ]
    # Times without text are no segment.
    assert len(cut_whole([60, 1, 70, 70], 100, FACTS).pieces) == 1


def test_a_window_without_any_token() -> None:
    found = cut([], 700, FACTS)
    assert found.frames == 700
    assert [(p.start, p.end, p.token_ids) for p in found.pieces] == [(0.0, 7.0, [])]
