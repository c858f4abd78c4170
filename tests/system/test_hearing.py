"""The tiny model that hears: digits that it has never heard, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from testing.recordings import wav
from testing.serving import Server
from testing.trained.hearing import FOLDER
from testing.trained.hearing.exam import unheard, word_errors
from testing.trained.hearing.recordings import SpokenText

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hearing() -> Iterator[Server]:
    with Server(str(FOLDER), "--num-kv-blocks", "512") as server:
        yield server


def heard(server: Server, recording: SpokenText) -> str:
    reply = httpx.post(
        f"{server.url}/v1/audio/transcriptions",
        files={"file": ("digits.wav", wav(recording.samples))},
        data={"language": "en"},
        timeout=120,
    )
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["text"]
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
