"""The tiny model that hears: digits that it has never heard, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import soxr

from testing.recordings import RATE, wav
from testing.serving import Server
from testing.trained.hearing import FOLDER
from testing.trained.hearing.exam import unheard, word_errors
from testing.trained.hearing.recordings import SpokenText
from tests.shared.media.sounds import saved_sound, saved_track

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hearing() -> Iterator[Server]:
    with Server(str(FOLDER), "--num-kv-blocks", "512") as server:
        yield server


def transcribed(server: Server, recording: SpokenText, **fields: Any) -> Any:
    reply = httpx.post(
        f"{server.url}/v1/audio/transcriptions",
        files={"file": ("digits.wav", wav(recording.samples))},
        data={"language": "en", **fields},
        timeout=120,
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


def heard(server: Server, recording: SpokenText) -> str:
    text: str = transcribed(server, recording)["text"]
    return text


def wrong(server: Server, recordings: list[SpokenText]) -> tuple[int, int]:
    """How many words are wrong, and how many there are."""
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda each: heard(server, each), recordings))
    errors = [word_errors(each.text, text) for each, text in zip(recordings, texts, strict=True)]
    return sum(errors), sum(len(each.words) for each in recordings)


def test_it_hears_digits_that_are_new_to_it(hearing: Server) -> None:
    assert wrong(hearing, unheard(15, 1.2, 1)) == (0, 15)
    errors, words = wrong(hearing, unheard(15, 3.0, 3))
    assert words > 40
    assert errors <= words // 10


CONTAINERS = {
    "m4a": ("ipod", "aac", None),
    "webm": ("webm", "libopus", None),
    "mp4": ("mp4", "aac", "libx264"),
    "aac": ("adts", "aac", None),
}


def test_telephones_and_browsers_containers_are_heard(hearing: Server) -> None:
    """Each by its contents, whatever it is called."""
    files: list[bytes] = []
    said = unheard(4, 1.2, 5)
    for recording, (kind, codec, pictures) in zip(said, CONTAINERS.values(), strict=True):
        samples = soxr.resample(recording.samples, RATE, 48_000)
        files.append(saved_track(samples, kind, codec, 48_000, pictures=pictures))
    files.append(saved_sound(said[0].samples, "AIFF"))
    for recording, data in zip([*said, said[0]], files, strict=True):
        reply = httpx.post(
            f"{hearing.url}/v1/audio/transcriptions",
            files={"file": ("talk.wav", data)},
            data={"language": "en"},
            timeout=120,
        )
        assert reply.status_code == 200, reply.text
        assert word_errors(recording.text, reply.json()["text"]) == 0


def test_words_lie_where_they_were_spoken(hearing: Server) -> None:
    """Two out of three within 0.2 s at either end, half of them within 0.1 s: that is what this
    model's attention knows."""
    asked = {"response_format": "verbose_json", "timestamp_granularities[]": ["word"]}
    errors: list[tuple[float, float]] = []
    for recording in unheard(15, 3.0):
        words = transcribed(hearing, recording, **asked)["words"]
        if [each["word"] for each in words] != [each.text for each in recording.words]:
            continue
        for ours, true in zip(words, recording.words, strict=True):
            errors.append((ours["start"] - true.start / RATE, ours["end"] - true.end / RATE))
    assert len(errors) > 25
    for which in zip(*errors, strict=True):
        off = sorted(map(abs, which))
        assert sum(each < 0.2 for each in off) > 0.65 * len(off)
        assert off[len(off) // 2] < 0.1
