"""Sounds in containers that libsndfile doesn't read, and those of videos: what was put in comes
out, and what is wrong is said."""

from __future__ import annotations

import random

import numpy as np
import psutil
import pytest

from penstock.media import soundtrack
from penstock.media.log_mel import LOG_MEL, log_mel
from penstock.media.pool import MediaPool, Unpreparable
from penstock.media.prepared import read
from penstock.media.sound import BadSound
from penstock.media.soundtrack import open_any
from penstock.media.wire import ItemBounds, Prepare, ProcessBounds
from penstock.model.sound_facts import LogMel
from tests import thinning
from tests.shared.media.sounds import RATE, saved_sound, saved_track, sound
from tests.shared.media.test_fuzz import damaged
from tests.shared.media.videos import movie

MEL = LogMel(sampling_rate=RATE, bins=80, n_fft=400, hop=160, seconds=30, row_frames=8, many=True)
EXACT = [("mov", "pcm_s16le"), ("mov", "pcm_f32le"), ("ipod", "alac"), ("avi", "pcm_u8")]
LOSSY = [
    ("ipod", "aac", None),
    ("adts", "aac", None),
    ("3gp", "aac", None),
    ("webm", "libopus", None),
    ("matroska", "aac", None),
    ("mpegts", "mp2", None),
    ("mpeg", "mp2", None),
    ("mp4", "libmp3lame", "mpeg4"),
    ("mp4", "aac", "libx264"),
    ("webm", "libopus", "libvpx"),
    ("mov", "aac", "mpeg4"),
    ("avi", "libmp3lame", "mpeg4"),
]


def delay(found: np.ndarray, wanted: np.ndarray) -> int:
    """Returns by how many samples one of them lags behind the other."""
    size = len(found) + len(wanted)
    spectrum = np.fft.rfft(found, size) * np.conj(np.fft.rfft(wanted, size))
    at = int(np.argmax(np.fft.irfft(spectrum, size)))
    return at if at < size // 2 else at - size


@pytest.mark.parametrize(("kind", "codec"), EXACT)
@pytest.mark.parametrize("channels", [1, 2])
def test_what_loses_nothing_comes_out_as_it_went_in(kind: str, codec: str, channels: int) -> None:
    made = sound(0.7, RATE, channels=channels)
    found = open_any(saved_track(made, kind, codec, RATE), RATE, 60)
    wanted = made if channels == 1 else made.mean(axis=1)
    assert found.dtype == np.float32
    assert len(found) == len(wanted)
    assert np.abs(found - wanted).max() < (0.01 if codec == "pcm_u8" else 4e-5)


@pytest.mark.parametrize(("kind", "codec", "pictures"), LOSSY)
def test_what_is_heard_is_what_was_said(kind: str, codec: str, pictures: str | None) -> None:
    """Within what the codec loses, and at its time within what an encoder adds before it."""
    rate = 48_000
    made = sound(1.5, rate, channels=2)
    data = saved_track(made, kind, codec, rate, pictures=pictures)
    found = open_any(data, RATE, 60)
    wanted = open_any(saved_sound(made, rate=rate), RATE, 60)
    late = delay(found, wanted)
    assert abs(late) < 0.07 * RATE
    assert -0.05 * RATE < len(found) - len(wanted) < 0.1 * RATE
    # Away from the ends, where codecs fade.
    first = max(late, 0) + RATE // 10
    count = RATE
    theirs = wanted[first - late : first - late + count]
    assert np.corrcoef(found[first : first + count], theirs)[0, 1] > 0.97


def test_a_sound_that_begins_later_than_its_pictures_keeps_its_time() -> None:
    made = sound(0.5, 48_000)
    data = saved_track(made, "matroska", "libopus", 48_000, begins=0.4, pictures="libvpx")
    found = open_any(data, RATE, 60)
    assert np.abs(found[: int(0.38 * RATE)]).max() < 1e-3
    assert np.abs(found[int(0.45 * RATE) :]).max() > 0.1
    assert abs(len(found) - 0.9 * RATE) < 0.03 * RATE


@pytest.mark.parametrize("kind", ["AIFF", "AU", "W64", "RF64", "WAVEX"])
def test_more_formats_of_libsndfile(kind: str) -> None:
    made = sound(0.4)
    found = open_any(saved_sound(made, kind, subtype="PCM_16"), RATE, 60)
    assert np.abs(found - made).max() < 4e-5


def test_a_tag_says_nothing_of_what_follows_it() -> None:
    """ID3 stands before AAC too; 200 bytes of it are two of seven bits."""
    tag = b"ID3\x04\0\0" + bytes([0, 0, 1, 72]) + bytes(200)
    made = sound(0.5, 48_000)
    aac = saved_track(made, "adts", "aac", 48_000)
    assert len(open_any(tag + aac, RATE, 60)) == len(open_any(aac, RATE, 60))
    mp3 = saved_sound(sound(0.5), "MP3")
    assert len(open_any(tag + mp3, RATE, 60)) == len(open_any(mp3, RATE, 60))


MATROSKA = saved_track(sound(2), "matroska", "aac", RATE)
M4A = saved_track(sound(2, 48_000), "ipod", "aac", 48_000)
BAD = {
    "a video without sound": (movie(), "has no sound in it"),
    "nothing but a head": (M4A[:28], "is damaged or cut off"),
    "an M4A without its end, which tells where all is": (M4A[: len(M4A) // 2], "damaged or cut"),
    "far too long": (saved_track(sound(11), "ipod", "alac", RATE), "lasts longer than 10 s"),
    "a codec that isn't read": (saved_track(sound(1), "mov", "pcm_s16le", RATE).replace(
        b"sowt", b"QDM2"), "coded in a way that isn't read; AAC, ALAC"),
    "a list of other files": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "unsupported format"),
    "another list": (b"ffconcat version 1.0\nfile /etc/passwd\n", "unsupported format"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_video_without_a_readable_soundtrack_is_an_error_that_says_why(case: str) -> None:
    data, words = BAD[case]
    with pytest.raises(BadSound, match=words):
        open_any(data, RATE, 10)


def test_of_a_file_that_is_cut_off_what_is_there_is_heard() -> None:
    """A file as programs that stream leave it."""
    for part in (0.5, 0.9):
        found = open_any(MATROSKA[: int(part * len(MATROSKA))], RATE, 60)
        assert part - 0.15 < len(found) / (2 * RATE) < part + 0.05


def test_without_pyav_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundtrack, "can_decode", lambda: False)
    with pytest.raises(BadSound, match=r"supported: WAV, .* need PyAV.*penstock-llm\[video\]"):
        open_any(M4A, RATE, 60)
    assert len(open_any(saved_sound(sound(1)), RATE, 60)) == RATE


@pytest.mark.parametrize("data", [MATROSKA, M4A], ids=["matroska", "m4a"])
async def test_damaged_files_are_sounds_or_refused(data: bytes) -> None:
    """In a process with its bounds, which none of them ends, and which doesn't grow."""
    pool = MediaPool(ProcessBounds(memory=1 << 30, cpu=20.0), 1)
    chance, bounds = random.Random(len(data)), ItemBounds(1, 5.0)
    complaints = {""}
    try:
        answer = await pool.prepare(Prepare(MEL, data, bounds))
        wanted = log_mel(MEL, open_any(data, RATE, 5.0))
        assert np.array_equal(read(answer.data)[LOG_MEL], wanted)
        process = psutil.Process(pool.pids[0])
        before = process.memory_info().rss
        for _ in range(thinning.part(20_000, 1 / 400)):
            try:
                answer = await pool.prepare(Prepare(MEL, damaged(data, chance), bounds))
            except Unpreparable as error:
                complaints.add(str(error))
            else:
                assert 0 < answer.shape[0] <= 5 * RATE
        assert max(map(len, complaints)) < 250
        assert pool.counts.ended == 0
        if pool.pids == [process.pid]:
            assert process.memory_info().rss - before < 64 << 20
    finally:
        pool.close()
