"""Recordings through a whole system: segments are those of transformers' own long-form algorithm,
in every format, over HTTP, in the library and in the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from penstock import AsyncLLM
from penstock.errors import DeadlineExceeded, InvalidRequest, RequestFailed
from penstock.transcription.transcript import Transcript
from penstock.transcription.wishes import Wishes
from testing.recordings import RATE, tones, wav
from testing.serving import Server
from tests.system.test_offline_scripts import endpoint
from tests.system.transcribing_models import (
    heard_by_transformers,
    tokenizer,
    write_whisper,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LONG = wav(tones(13.37, 1))
SHORT = wav(tones(1.5, 2))
ONCE: dict[str, Any] = {"language": "en", "seed": 5, "temperature": 0.3}
TIMED: dict[str, Any] = {
    **ONCE,
    "response_format": "verbose_json",
    "timestamp_granularities[]": ["segment", "word"],
}
"""One attempt for each window: at temperature 0, nothing of a random model is believed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper") / "tiny-whisper")


@pytest.fixture(scope="module")
def hearing(folder: Path) -> Iterator[Server]:
    with Server(str(folder), "--num-kv-blocks", "256", "--dtype", "float32") as server:
        yield server


def post(url: str, file: bytes, task: str = "transcriptions", **fields: Any) -> httpx.Response:
    files = {"file": ("a.wav", file)}
    return httpx.post(f"{url}/v1/audio/{task}", files=files, data=fields, timeout=120)


def transcribed(server: Server, file: bytes, wishes: Wishes) -> Transcript:
    async def run() -> Transcript:
        async with AsyncLLM(engine_endpoint=endpoint(server)) as llm:
            return await llm.transcribe(file, wishes)

    return asyncio.run(run())


async def test_the_librarys_requests_have_terms_and_names(hearing: Server) -> None:
    llm = AsyncLLM(engine_endpoint=endpoint(hearing))
    once = Wishes(language="en", seed=5, temperature=0.3)
    try:
        heard = await llm.transcribe(SHORT, once)  # Which starts it.
        with pytest.raises(DeadlineExceeded):
            await llm.transcribe(LONG, deadline_ms=1)
        work = asyncio.ensure_future(llm.transcribe(LONG, request_id="talk"))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="'talk' is in use"):
            await llm.transcribe(SHORT, request_id="talk")
        await llm.abort("talk")
        with pytest.raises(RequestFailed, match="aborted"):
            await work
        left = asyncio.ensure_future(llm.transcribe(LONG))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        with pytest.raises(InvalidRequest, match="priority is 3; the scheduling policy is fcfs"):
            await llm.transcribe(SHORT, once, priority=3)
        again = await llm.transcribe(SHORT, once, request_id="talk")
        assert again.text == heard.text
    finally:
        await llm.close()


@pytest.mark.parametrize("chunking", ["", "auto"])
def test_of_silence_no_words_are_made_up(hearing: Server, chunking: str) -> None:
    """A window that is as quiet as can be isn't decoded; what is said after it is heard."""
    quiet = np.zeros(10 * RATE, np.float32)
    said = wav(np.concatenate([tones(2.0, 1), quiet, tones(2.0, 2)]))
    reply = post(hearing.url, said, **TIMED, chunking_strategy=chunking).json()
    seeks = [each["seek"] / 100 for each in reply["segments"]]
    assert seeks[0] < 2
    assert seeks[-1] > 8
    assert not [seek for seek in seeks if 2.1 < seek < 7.9]
    assert post(hearing.url, wav(quiet), **ONCE).json()["text"] == ""


@pytest.mark.parametrize(("language", "task"), [("en", "transcribe"), ("de", "translate")])
def test_a_long_recording_is_heard_as_by_transformers(
    folder: Path, hearing: Server, language: str, task: str
) -> None:
    wishes = Wishes(language=language, translate=task == "translate", fallback=False, words=True)
    ours = transcribed(hearing, LONG, wishes)
    theirs = heard_by_transformers(folder, LONG, language, task)
    assert len(theirs) > 3
    end = 256
    found = [
        (each.start, each.end, [t for t in each.token_ids if t < end]) for each in ours.segments
    ]
    wanted = [each for each in theirs if tokenizer().decode(each.text(end)).strip()]
    assert [each[2] for each in found] == [each.text(end) for each in wanted]
    assert [each[:2] for each in found] == [
        pytest.approx((each.start, each.end)) for each in wanted
    ]
    checked = 0
    for segment, their in zip(ours.segments, wanted, strict=True):
        # A letter is a token: a word begins where the token before its first one ends.
        spoken = [at for at, token in enumerate(their.token_ids) if token < end]
        if "\N{REPLACEMENT CHARACTER}" not in segment.text:
            assert "".join(word.text for word in segment.words) == "".join(segment.text.split())
        times = {round(min(max(each, their.start), their.end), 2) for each in their.ends}
        assert spoken
        for word in segment.words[1:]:
            assert round(word.start, 2) in times
        for word in segment.words:
            assert round(word.end, 2) in times
            checked += 1
    assert checked > 5


def test_formats(hearing: Server) -> None:
    asked = ONCE
    whole = post(hearing.url, LONG, response_format="verbose_json", **asked).json()
    assert (whole["task"], whole["language"], whole["duration"]) == ("transcribe", "english", 13.37)
    assert whole["usage"] == {"type": "duration", "seconds": 14}
    segments = whole["segments"]
    assert [each["id"] for each in segments] == list(range(len(segments)))
    assert "".join(each["text"] for each in segments).strip() == whole["text"]
    assert all(0 <= each["start"] <= each["end"] for each in segments)
    assert all(0 <= each["no_speech_prob"] <= 1 for each in segments)
    plain = post(hearing.url, LONG, **asked).json()
    assert plain == {"text": whole["text"], "usage": whole["usage"]}
    text = post(hearing.url, LONG, response_format="text", **asked)
    assert text.headers["content-type"].startswith("text/plain")
    assert text.text == whole["text"] + "\n"
    srt = post(hearing.url, LONG, response_format="srt", **asked).text
    assert srt.startswith("1\n00:00:0")
    assert srt.count(" --> ") == len(segments)
    vtt = post(hearing.url, LONG, response_format="vtt", **asked)
    assert vtt.headers["content-type"].startswith("text/vtt")
    assert vtt.text.startswith("WEBVTT\n\n")
    assert vtt.text.count(" --> ") == len(segments)


def test_openai_client_streams_and_names_what_is_wrong(hearing: Server) -> None:
    with OpenAI(base_url=f"{hearing.url}/v1", api_key="none", timeout=120) as client:
        create = client.audio.transcriptions.create
        given = {
            "file": ("a.wav", LONG),
            "model": hearing.model,
            "language": "en",
            "temperature": 0.3,
        }
        whole = create(**given, extra_body={"seed": 5})
        assert whole.usage.seconds == 14
        events = list(create(**given, stream=True, extra_body={"seed": 5}))
        assert [each.type for each in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
        assert events[-1].type == "transcript.text.done"
        assert "".join(each.delta for each in events[:-1]) == events[-1].text == whole.text
        verbose = create(**given, response_format="verbose_json", extra_body={"seed": 5})
        assert verbose.text == whole.text
        assert verbose.segments
        translated = client.audio.translations.create(file=("a.wav", SHORT), model=hearing.model)
        assert isinstance(translated.text, str)
        timed = create(
            **given,
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
            extra_body={"seed": 5},
        )
        assert timed.text == whole.text
        assert timed.segments
        assert "".join(each.word for each in timed.words) == "".join(whole.text.split())
        assert all(0 <= each.start <= each.end <= 13.37 for each in timed.words)
        assert timed.words == sorted(timed.words, key=lambda each: each.start)
        alone = create(
            **given,
            response_format="verbose_json",
            timestamp_granularities=["word"],
            extra_body={"seed": 5},
        )
        assert (alone.words, alone.segments) == (timed.words, None)
        with pytest.raises(BadRequestError, match="allowed: segment, word"):
            create(**given, response_format="verbose_json", timestamp_granularities=["letter"])


def test_a_text_depends_on_its_request_alone(hearing: Server) -> None:
    asked = [
        (LONG, {**ONCE, "chunking_strategy": "auto"}),
        (SHORT, {}),  # Every temperature, and the language.
        (SHORT, {"seed": 7, "temperature": 0.7, "prompt": "names"}),
    ]
    alone = [post(hearing.url, file, **each).json() for file, each in asked]
    assert all("usage" in each for each in alone)
    with ThreadPoolExecutor(6) as pool:
        work = [pool.submit(post, hearing.url, file, **each) for file, each in asked * 2]
        crowd = [each.result().json() for each in work]
    assert crowd == alone * 2


def test_a_worker_that_dies_changes_nothing(hearing: Server) -> None:
    alone = post(hearing.url, LONG, **TIMED).json()
    assert alone["words"]
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(post, hearing.url, LONG, **TIMED)
        os.kill(hearing.child("worker 0"), signal.SIGKILL)
        assert work.result().json() == alone


@pytest.mark.parametrize(
    ("file", "fields", "status", "complaint"),
    [
        (b"GIF89a", {}, 400, "the sound has an unsupported format"),
        (b"", {}, 400, "file is empty"),
        (SHORT, {"language": "fr"}, 400, r"allowed: de (german), en (english)"),
        (SHORT, {"response_format": "xml"}, 400, "allowed: json, text, srt, vtt, verbose_json"),
        (SHORT, {"temperature": "2"}, 400, "[0, 1]"),
        (SHORT, {"temperature": "warm"}, 400, "temperature"),
        (SHORT, {"language": "en", "speed": "2"}, 400, "unknown field speed"),
        (SHORT, {"model": "other"}, 404, "other"),
        (SHORT, {"stream": "true", "response_format": "srt"}, 400, "a stream has json or text"),
        (b"RIFF" + bytes(21_000_000), {}, 413, "--max-media-bytes"),
    ],
)
def test_a_wrong_field_of_a_transcription_is_named(
    hearing: Server, file: bytes, fields: dict[str, str], status: int, complaint: str
) -> None:
    reply = post(hearing.url, file, **fields)
    assert (reply.status_code, complaint in reply.json()["error"]["message"]) == (status, True), (
        reply.text
    )


def test_in_the_terminal(hearing: Server, tmp_path: Path) -> None:
    file = tmp_path / "talk.wav"
    file.write_bytes(SHORT)
    command = [sys.executable, "-m", "penstock", "transcribe", "--url", hearing.url, str(file)]
    command += ["--language", "en", "--temperature", "0.3", "--seed", "5"]
    command += ["--format", "verbose_json", "--word-times"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["text"] == post(hearing.url, SHORT, **ONCE).json()["text"]
    assert (found["duration"], found["language"]) == (1.5, "english")
    timed = post(hearing.url, SHORT, **TIMED).json()
    assert (found["words"], found["segments"]) == (timed["words"], timed["segments"])
