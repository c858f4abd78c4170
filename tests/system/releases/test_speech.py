"""Whisper base over HTTP: speech in every container that users have, silence, and half an hour."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import httpx
import numpy as np
import pytest
import soxr
import torch
from transformers import AutoProcessor, WhisperForConditionalGeneration

from penstock.media.soundtrack import open_any
from testing.serving import Server
from tests.shared.media.sounds import RATE, saved_sound, saved_track
from tests.system.releases.files import WHISPER
from tests.system.releases.whisper_base import write_folder

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

SAID = "The ship sailed across the ocean. It carried bread, water and two hundred books."
TRACKS = {
    "m4a": ("ipod", "aac", None),
    "alac": ("ipod", "alac", None),
    "webm": ("webm", "libopus", None),
    "mp4": ("mp4", "aac", "libx264"),
    "mov": ("mov", "aac", "mpeg4"),
    "mkv": ("matroska", "aac", "libx264"),
    "avi": ("avi", "libmp3lame", "mpeg4"),
    "aac": ("adts", "aac", None),
    "caf": ("caf", "alac", None),
    "ts": ("mpegts", "mp2", None),
}
FORMATS = ("WAV", "MP3", "FLAC", "OGG", "AIFF", "AU", "W64")


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Somebody's synthetic voice. float32 [samples]."""
    program = which("espeak-ng")
    if program is None:
        pytest.skip("espeak-ng, which speaks what is heard, is not installed")
    path = tmp_path_factory.mktemp("said") / "said.wav"
    subprocess.run([program, "-s", "140", "-w", str(path), SAID], check=True, timeout=60)
    return open_any(path.read_bytes(), RATE, 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(WHISPER.file(), tmp_path_factory.mktemp("whisper") / "whisper-base")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    flags = ("--num-kv-blocks", "512", "--max-media-seconds", "3600")
    with Server(str(folder), *flags) as running:
        yield running


def heard(server: Server, data: bytes) -> tuple[str, list[float]]:
    """The text, and when its segments begin, seconds."""
    reply = httpx.post(
        f"{server.url}/v1/audio/transcriptions",
        files={"file": ("talk", data)},
        data={"language": "en", "response_format": "verbose_json"},
        timeout=1800,
    )
    assert reply.status_code == 200, reply.text
    found = reply.json()
    return found["text"], [each["start"] for each in found["segments"]]


def words(text: str) -> list[str]:
    cleaned = text.lower().replace("200", "two hundred")
    return "".join(c for c in cleaned if c.isalpha() or c == " ").split()


def wrong(text: str) -> int:
    """How many of the words that were said aren't heard."""
    return len(set(words(SAID)) - set(words(text)))


def test_the_text_is_that_of_transformers(server: Server, folder: Path, speech: np.ndarray) -> None:
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(folder)
    given = processor(speech, sampling_rate=RATE, return_tensors="pt")
    ids = model.generate(
        given.input_features, language="en", task="transcribe", return_timestamps=True
    )
    [text] = processor.batch_decode(ids, skip_special_tokens=True)
    assert heard(server, saved_sound(speech, "WAV"))[0].strip() == text.strip()


def test_every_container_is_heard(server: Server, speech: np.ndarray) -> None:
    finer = soxr.resample(speech, RATE, 48_000)
    files = {kind: saved_sound(speech, kind) for kind in FORMATS}
    files["opus"] = saved_sound(finer, "OGG", 48_000, subtype="OPUS")
    for name, (kind, codec, pictures) in TRACKS.items():
        files[name] = saved_track(finer, kind, codec, 48_000, pictures=pictures)
    missed = {name: wrong(heard(server, data)[0]) for name, data in files.items()}
    assert max(missed.values()) <= 2, missed


def test_quiet_speech_is_heard_and_silence_is_none(server: Server, speech: np.ndarray) -> None:
    assert wrong(heard(server, saved_sound(speech * 0.01))[0]) <= 2
    assert heard(server, saved_sound(np.zeros(20 * RATE, np.float32))) == ("", [])


def test_half_an_hour_with_three_sentences(server: Server, speech: np.ndarray) -> None:
    """Each at its time, and no word in between; windows without sound cost nothing."""
    minutes = (0, 10, 29)
    whole = np.zeros(30 * 60 * RATE, np.float32)
    for minute in minutes:
        begin = (60 * minute + 5) * RATE
        whole[begin : begin + len(speech)] = speech
    text, starts = heard(server, saved_sound(whole, "FLAC"))
    assert words(text).count("ocean") == len(minutes)
    assert {int(start // 60) for start in starts} == set(minutes)
