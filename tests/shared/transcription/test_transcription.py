"""Subtitles, quiet places, what a text's quality says, and what may be wished for."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from penstock.errors import InvalidRequest
from penstock.transcription.decoding import Quality, compression_ratio
from penstock.transcription.languages import NAMES, code_of, name_of
from penstock.transcription.recording import quiet_windows
from penstock.transcription.transcript import srt, vtt
from penstock.transcription.wishes import Wishes, language_of, task_tokens
from tests.shared.transcription.test_segments import FACTS

LINES = [
    SimpleNamespace(start=0.0, end=2.5, text=" Hello --> there.\n\n1"),
    SimpleNamespace(start=3599.9996, end=3661.042, text=" Bye."),
]
MULTILINGUAL = msgspec.structs.replace(
    FACTS, languages={"en": 52, "de": 53}, transcribe=54, translate=55
)


def test_subtitles() -> None:
    assert srt(LINES) == (
        "1\n00:00:00,000 --> 00:00:02,500\nHello -> there. 1\n\n"
        "2\n01:00:00,000 --> 01:01:01,042\nBye.\n\n"
    )
    assert vtt(LINES) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nHello -> there. 1\n\n"
        "01:00:00.000 --> 01:01:01.042\nBye.\n\n"
    )


def test_languages_are_those_of_transformers() -> None:
    assert NAMES == LANGUAGES
    assert code_of(" German ") == code_of("DE") == "de"
    assert name_of("de") == "german"


def test_cuts_are_bounded_and_lie_in_pauses() -> None:
    rng = np.random.default_rng(1)
    mel = rng.normal(1.0, 0.3, (8, 10_000)).astype(np.float32)
    pauses = [2700, 5400, 8350]
    for pause in pauses:
        mel[:, pause - 20 : pause + 20] = -1.5
    found = quiet_windows(mel, 3000, 100)
    assert [begin for begin, _ in found] == [0] + [end for _, end in found[:-1]]
    assert found[-1][1] == 10_000
    assert all(0 < end - begin <= 3000 for begin, end in found)
    for (_, end), pause in zip(found, pauses, strict=False):
        assert abs(end - pause) < 20
    assert quiet_windows(mel[:, :3000], 3000, 100) == [(0, 3000)]


def test_quality() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("No. " * 100) > 2.4 > compression_ratio("A plain sentence, said once.")
    assert Quality(2.5, -0.5).is_repetitive
    assert not Quality(2.4, -0.5).is_repetitive
    assert Quality(1.0, -1.01).is_guessed
    assert not Quality(1.0, -1.0).is_guessed


def test_wishes() -> None:
    assert Wishes().temperatures == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert Wishes(temperature=0.3).temperatures == (0.3,)
    assert language_of(Wishes(), MULTILINGUAL) is None
    assert language_of(Wishes(), FACTS) == "en"
    assert language_of(Wishes(language="German"), MULTILINGUAL) == "de"
    assert task_tokens("de", Wishes(translate=True), MULTILINGUAL) == [51, 53, 55]
    assert task_tokens("en", Wishes(), FACTS) == [51]
    with pytest.raises(InvalidRequest, match=r"'fr'.*allowed: de \(german\), en \(english\)"):
        language_of(Wishes(language="fr"), MULTILINGUAL)
    with pytest.raises(InvalidRequest, match="knows one language"):
        language_of(Wishes(translate=True), FACTS)
