"""Where sound that comes bit by bit is cut: at pauses, the same however it comes."""

from __future__ import annotations

import numpy as np
import pytest

from penstock_gateway.realtime.utterance import RATE, PieceCutter


def sound(*parts: tuple[float, float]) -> bytes:
    """Noise. parts: (seconds, loudness)."""
    rng = np.random.default_rng(3)
    made = [rng.normal(0, loudness, round(seconds * RATE)) for seconds, loudness in parts]
    return (np.concatenate(made) * 32767).clip(-32768, 32767).astype("<i2").tobytes()


def cut(data: bytes, seconds: float, chunk: int) -> list[bytes]:
    cutter = PieceCutter(seconds)
    found = [
        piece for at in range(0, len(data), chunk) for piece in cutter.add(data[at : at + chunk])
    ]
    rest = cutter.rest()
    assert cutter.held == 0
    return [piece.tobytes() for piece in (*found, *([] if rest is None else [rest]))]


SPEECH = sound((1.0, 0.0001), (2.0, 0.1), (0.9, 0.0005), (1.5, 0.1), (0.2, 0.0005), (1.0, 0.1))


@pytest.mark.parametrize("chunk", [2, 322, 3200, 5000, 48_002])
def test_pieces_are_the_same_however_they_come(chunk: int) -> None:
    data = SPEECH[:60_000] if chunk == 2 else SPEECH
    assert cut(data, 30.0, chunk) == cut(data, 30.0, len(data))


def test_pauses_part_and_silence_is_dropped() -> None:
    pieces = [np.frombuffer(piece, np.float32) for piece in cut(SPEECH, 30.0, 3200)]
    seconds = [len(piece) / RATE for piece in pieces]
    assert seconds == pytest.approx([2.6, 3.0], abs=0.3)
    assert max(abs(pieces[0][:3200])) < 0.01
    assert sum(seconds) < 6.0
    assert cut(sound((5.0, 0.0005)), 30.0, 3200) == []


def test_no_piece_is_longer_than_a_window() -> None:
    steady = sound((2.5, 0.2), (0.1, 0.02), (8.0, 0.2))
    pieces = cut(steady, 3.0, 3200)
    assert sum(map(len, pieces)) == 2 * len(steady)
    lengths = [len(piece) / 4 / RATE for piece in pieces]
    assert max(lengths) <= 3.0
    assert lengths[0] == pytest.approx(2.56, abs=0.06)
