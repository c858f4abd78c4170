"""From files to samples and spectrograms: as libsndfile, soxr and transformers have them, and
refused in our words where something is wrong."""

from __future__ import annotations

import contextlib
import io
import random
import struct
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import soundfile
import soxr
import torch
from transformers import (
    Gemma3nAudioFeatureExtractor,
    Gemma4AudioFeatureExtractor,
    Gemma4UnifiedAudioFeatureExtractor,
    WhisperFeatureExtractor,
)
from transformers.audio_utils import mel_filter_bank
from transformers.models.granite_speech.feature_extraction_granite_speech import (
    GraniteSpeechFeatureExtractor,
)

from penstock.media.log_mel import LOG_MEL, log_mel
from penstock.media.magnitudes import emphasised_mel, magnitude_mel, paired_mel
from penstock.media.pool import MediaPool, Unpreparable
from penstock.media.prepared import read
from penstock.media.sound import FORMATS, MAX_CHANNELS, BadSound, is_chained, open_sound, raw_sound
from penstock.media.spectrogram import sample_frames
from penstock.media.wire import ItemBounds, Prepare, ProcessBounds
from penstock.model.sound_facts import (
    BadLength,
    EmphasisedMel,
    FrameMel,
    LogMel,
    PairedMel,
    Waveform,
)
from tests import thinning
from tests.shared.media.sounds import RATE, saved_sound, sound
from tests.shared.media.test_fuzz import damaged

FRAMES = FrameMel(
    sampling_rate=RATE,
    bins=128,
    lowest=0.0,
    highest=8000.0,
    frame=320,
    hop=160,
    n_fft=512,
    floor=1e-3,
    seconds=30,
)
WHISPER = LogMel(sampling_rate=RATE, bins=80, n_fft=400, hop=160, seconds=30, row_frames=2)
CUT = LogMel(sampling_rate=RATE, bins=128, n_fft=400, hop=160, seconds=30, row_frames=4, cut=True)
MANY = LogMel(sampling_rate=RATE, bins=80, n_fft=400, hop=160, seconds=30, row_frames=8, many=True)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_files_become_samples(kind: str, rate: int) -> None:
    """At the file's own rate libsndfile's samples; at another one, soxr's of all of them."""
    data = saved_sound(sound(1.3, rate, channels=2), kind, rate)
    decoded, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    wanted = decoded.mean(axis=1)
    found = open_sound(data, RATE, 60)
    assert found.dtype == np.float32
    if rate == RATE:
        # Decoded in parts, an MP3's last places differ.
        assert np.abs(found - wanted).max() <= (1e-6 if kind == "MP3" else 0)
    else:
        whole = soxr.resample(wanted, rate, RATE)
        assert len(found) == -(-len(wanted) * RATE // rate)
        assert np.abs(found[: len(whole)] - whole[: len(found)]).max() < 1e-6


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "FLOAT", "DOUBLE", "ULAW", "MS_ADPCM"])
def test_ways_to_write_a_wav(subtype: str) -> None:
    made = sound(0.4)
    found = open_sound(saved_sound(made, subtype=subtype), RATE, 60)
    assert np.sqrt(np.mean((found[: len(made)] - made) ** 2)) < 0.04


def test_samples_of_a_program() -> None:
    made = sound(0.3, 8000)
    assert np.array_equal(raw_sound(made.tobytes(), RATE, RATE, 60), made)
    whole = soxr.resample(made, 8000, RATE)
    assert np.abs(raw_sound(made.tobytes(), 8000, RATE, 60) - whole).max() < 1e-6


@pytest.mark.parametrize("mel", [WHISPER, CUT, MANY])
def test_spectrograms_are_those_of_transformers(mel: LogMel) -> None:
    """They equal its path that computes with NumPy, bit for bit."""
    theirs = WhisperFeatureExtractor(feature_size=mel.bins)
    for seconds in (0.04, 1.7) + ((31.2,) if mel.many else (30.0,)):
        samples = sound(seconds)
        chunks = -(-len(samples) // mel.chunk_samples)
        whole = np.zeros(chunks * mel.chunk_samples, np.float32)
        whole[: len(samples)] = samples
        wanted = theirs._np_extract_fbank_features(whole[None], "cpu")[0]
        wanted = wanted.reshape(mel.bins, chunks, -1).transpose(1, 0, 2)
        found = log_mel(mel, samples)
        assert found.shape == (chunks, mel.bins, mel.windows(len(samples)))
        assert found.dtype == np.float32
        assert np.array_equal(found, wanted[:, :, : found.shape[2]])


@pytest.mark.parametrize("bins", [128, 12])
def test_magnitudes_are_those_of_transformers(bins: int) -> None:
    """So are rows, which are what its mask leaves behind two convolutions."""
    theirs = Gemma4AudioFeatureExtractor(feature_size=bins)
    mel = msgspec.structs.replace(FRAMES, bins=bins)
    for samples in (161, 320, 321, 7777, 16_000, 30 * RATE):
        given = sound(samples / RATE)[:samples]
        wanted = theirs([given], return_tensors="np")
        mask = wanted["input_features_mask"][0]
        found = magnitude_mel(mel, given)
        assert found.shape == (1, bins, mask.sum())
        assert found.dtype == np.float32
        assert np.abs(found[0].T - wanted["input_features"][0][mask]).max() < 1e-5
        assert mel.embeddings(samples) == mask[::2][::2].sum()
    with pytest.raises(BadLength, match="161 at least"):
        FRAMES.embeddings(160)
    with pytest.raises(BadLength, match="30 s at most"):
        FRAMES.embeddings(30 * RATE + 1)


@pytest.mark.parametrize("samples", [1, 639, 640, 641, 7777, 31 * RATE])
def test_samples_as_they_are_are_those_of_transformers(samples: int) -> None:
    waveform, given = Waveform(sampling_rate=RATE, frame=640), sound(samples / RATE)[:samples]
    wanted = Gemma4UnifiedAudioFeatureExtractor()([given], return_tensors="np")
    assert wanted["input_features_mask"].all()
    found = sample_frames(waveform, given)
    assert found.dtype == np.float32
    assert np.array_equal(found[0].T, wanted["input_features"][0])
    assert found.shape == (1, 640, waveform.embeddings(samples))


def test_a_sound_of_no_samples_has_none() -> None:
    with pytest.raises(BadLength, match="1 at least"):
        Waveform(sampling_rate=RATE, frame=640).embeddings(0)


EMPHASISED = EmphasisedMel(
    sampling_rate=RATE,
    bins=128,
    lowest=125.0,
    highest=7600.0,
    frame=512,
    hop=160,
    n_fft=1024,
    emphasis=0.97,
    floor=1e-5,
    multiple=128,
    seconds=30,
    rows=189,
)


@pytest.mark.parametrize("bins", [128, 12])
def test_emphasised_magnitudes_are_those_of_transformers(bins: int) -> None:
    """All of its windows count, of which the last may lie in the silence behind the sound."""
    theirs = Gemma3nAudioFeatureExtractor(feature_size=bins)
    mel = msgspec.structs.replace(EMPHASISED, bins=bins)
    for samples in (513, 640, 641, 7777, 16_000, 30 * RATE):
        given = sound(samples / RATE)[:samples]
        wanted = theirs([given], return_tensors="np")
        assert wanted["input_features_mask"].all()
        found = emphasised_mel(mel, given)
        assert found.shape == (1, bins, wanted["input_features"].shape[1])
        assert found.dtype == np.float32
        assert np.abs(found[0].T - wanted["input_features"][0]).max() < 1e-4
        assert mel.embeddings(samples) == 189
    with pytest.raises(BadLength, match="513 at least"):
        EMPHASISED.embeddings(512)
    with pytest.raises(BadLength, match="30 s at most"):
        EMPHASISED.embeddings(30 * RATE + 1)


PAIRS = PairedMel(
    sampling_rate=RATE, bins=80, frame=400, n_fft=512, hop=160, window=15, queries=3, seconds=30
)


@pytest.mark.parametrize("samples", [257, 320, 479, 7777, 16_000, 30 * RATE])
def test_pairs_of_windows_are_those_of_transformers(samples: int) -> None:
    """Its extractor computes with torchaudio, which is no dependency: torch's own transform is
    beneath it, and transformers' bands are the same as torchaudio's."""
    given = sound(samples / RATE)[:samples]
    window = torch.hann_window(400)
    spectrum = torch.stft(
        torch.from_numpy(given), 512, 160, 400, window, pad_mode="reflect", return_complex=True
    )
    bands = mel_filter_bank(257, 80, 0.0, 8000.0, RATE, norm=None, mel_scale="htk")
    logs = (spectrum.abs().pow(2).T @ torch.from_numpy(bands).float()).clip(min=1e-10).log10()
    logs = torch.maximum(logs, logs.max() - 8.0) / 4 + 1
    wanted = logs[: len(logs) // 2 * 2]
    found = paired_mel(PAIRS, given)
    assert found.dtype == np.float32
    assert np.abs(found[0].T - wanted.numpy()).max() < 1e-3
    lengths = GraniteSpeechFeatureExtractor._get_num_audio_features
    alike = SimpleNamespace(
        melspec_kwargs={"hop_length": 160}, projector_window_size=15, projector_downsample_rate=5
    )
    assert [PAIRS.embeddings(samples)] == lengths(alike, [samples])


def test_a_sound_that_is_too_short_for_pairs() -> None:
    for samples in (0, 1, 256):
        with pytest.raises(BadLength, match="257 at least"):
            PAIRS.embeddings(samples)


def test_rows_of_a_sound() -> None:
    assert WHISPER.embeddings(1) == WHISPER.embeddings(30 * RATE) == 1500
    assert [MANY.embeddings(n) for n in (1, 30 * RATE, 30 * RATE + 1)] == [375, 375, 750]
    for samples in (321, 1000, 160_000, 30 * RATE):
        windows = -(-samples // 160)  # transformers' rule, of its attention mask
        assert CUT.embeddings(samples) == ((windows - 1) // 2 + 1 - 2) // 2 + 1
    with pytest.raises(BadLength, match="321 at least"):
        CUT.embeddings(320)
    with pytest.raises(BadLength, match=r"lasts 30\.0 s; this model hears 30 s at most"):
        WHISPER.embeddings(30 * RATE + 1)
    with pytest.raises(BadLength, match="no samples"):
        MANY.embeddings(0)


def head(size: int, *, channels: int = 1, rate: int = RATE, data: int | None = None) -> bytes:
    """A WAV file of 16 bits with so many bytes of silence; data: how many its head announces."""
    stated = size if data is None else data
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * 2 * channels, 2 * channels, 16)
    inner = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", stated)
    return b"RIFF" + struct.pack("<I", min(36 + stated, 0xFFFFFFFF)) + inner + bytes(size)


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "unsupported format; supported: WAV, FLAC, OGG, MP3"),
    "a text": (b"hello, this is no sound", "unsupported format"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(99), "unsupported format"),
    "another RIFF file": (b"RIFF\x04\0\0\0WEBP" + bytes(99), "unsupported format"),
    "a head alone": (head(0), "has no samples|is damaged"),
    "a WAV without samples": (saved_sound(sound(1), "WAV")[:44], "before its samples begin"),
    "an AIFF that is cut off": (saved_sound(sound(1), "AIFF")[:-900], "announces 900 bytes more"),
    "an AU that is cut off": (saved_sound(sound(1), "AU")[:-900], "announces 900 bytes more"),
    "an RF64 that is cut off": (saved_sound(sound(1), "RF64")[:-900], "announces 900 bytes more"),
    "a W64 that is cut off": (saved_sound(sound(1), "W64")[:-900], "announces 900 bytes more"),
    "an RF64 whose head is cut off": (saved_sound(sound(1), "RF64")[:30], "is damaged"),
    "a W64 whose head is cut off": (saved_sound(sound(1), "W64")[:50], "is damaged"),
    "a FLAC that is cut off": (saved_sound(sound(1), "FLAC")[:300], "is damaged|has no samples"),
    "far too long": (head(64_000, rate=1000), r"lasts 32 s; at most 10 are accepted"),
    "a strange rate": (head(4000, rate=1), "1000 to 384000"),
    "a huge rate": (head(4000, rate=0x7FFFFFFF), "1000 to 384000"),
    "many channels": (head(4000, channels=MAX_CHANNELS + 1), "1 to 16 are read|is damaged"),
    "no channels": (head(4000, channels=0), "is damaged"),
    "not a number": (
        saved_sound(np.array([0, np.nan, 1], np.float32), subtype="FLOAT"),
        "not finite numbers",
    ),
    "rubbish behind a tag": (b"ID3\x04\0\0\0\0\0\0" + bytes(500), "is damaged"),
}


@pytest.mark.parametrize("case", BAD)
def test_bytes_that_are_no_sound_are_an_error_that_says_why(case: str) -> None:
    data, words = BAD[case]
    with pytest.raises(BadSound, match=words):
        open_sound(data, RATE, 10)


@pytest.mark.parametrize("size", [1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_lengths_of_eight_bytes_are_no_tracebacks(
    size: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for kind, at in (("RF64", 28), ("RF64", 20), ("RF64", 36), ("W64", 16), ("W64", 96)):
        data = bytearray(saved_sound(sound(1), kind))
        struct.pack_into("<Q", data, at, size)
        with contextlib.suppress(BadSound):
            assert len(open_sound(bytes(data), RATE, 10)) == RATE
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_nothing_behind_the_end_of_an_ogg_stream_is_left_out(subtype: str) -> None:
    """libsndfile ends with the first of several; a part of one is no other one."""
    first, second = (saved_sound(sound(1, seed=n), "OGG", subtype=subtype) for n in range(2))
    for data in (first + second, first + b"rubbish" + second, first[:-40] + second):
        with pytest.raises(BadSound, match=r"several sounds .*chained Ogg"):
            open_sound(data, RATE, 60)
    assert len(open_sound(first, RATE, 60)) == RATE
    assert not any(map(is_chained, (first + b"rubbish", first + second[:20])))
    page = second.index(b"OggS", 1)  # Beside one another: both begin before either goes on.
    assert not is_chained(second[:page] + first + second[page:])
    for end in range(0, len(first), 7):
        assert not is_chained(first[:end])


def test_wav_files_of_programs_that_stream() -> None:
    for stated in (0xFFFFFFFF, 0x7FFFFFFF):
        assert len(open_sound(head(4000, data=stated), RATE, 10)) == 2000
    whole = saved_sound(sound(1), subtype="PCM_16")
    at = whole.index(b"data") + 4
    listed = b"LIST\x04\0\0\0INFO"
    for outer in (whole[4:8], bytes(4), b"\xff" * 4):
        # Nobody went back to write how long it became; chunks may stand before the samples.
        for before in (b"", listed):
            streamed = (
                b"RIFF" + outer + whole[8 : at - 4] + before + b"data" + bytes(4) + whole[at + 4 :]
            )
            assert np.array_equal(open_sound(streamed, RATE, 10), open_sound(whole, RATE, 10))
    for behind in (b"", listed, listed * 3):
        with pytest.raises(BadSound, match=r"has no samples|is damaged"):
            open_sound(head(0) + behind, RATE, 10)


@pytest.mark.parametrize(
    ("kind", "before", "stated"),
    [("AIFF", b"SSND", 0x7F000008), ("AU", b".snd\0\0\0\x18", 0xFFFFFFFF)],
)
def test_other_files_of_programs_that_stream(kind: str, before: bytes, stated: int) -> None:
    """Their heads have such lengths where nobody could go back to write how long it became."""
    whole = saved_sound(sound(1), kind)
    at = whole.index(before) + len(before)
    streamed = whole[:at] + struct.pack(">I", stated) + whole[at + 4 :]
    assert np.array_equal(open_sound(streamed, RATE, 10), open_sound(whole, RATE, 10))


def test_a_flac_file_that_lies_about_its_length() -> None:
    """What is decoded counts: 36 bits of the head say how many samples there are."""
    data = bytearray(saved_sound(sound(12), "FLAC"))
    at = data.index(b"fLaC") + 8 + 13
    data[at : at + 5] = bytes([data[at] & 0xF0]) + struct.pack(">I", 1000)
    # libsndfile stops where the head says, and finds that frames are left.
    assert len(open_sound(bytes(data), RATE, 10)) <= 10 * RATE


def test_samples_that_are_none() -> None:
    with pytest.raises(BadSound, match="float32 samples"):
        raw_sound(b"abc", RATE, RATE, 10)
    with pytest.raises(BadSound, match="at most 10"):
        raw_sound(bytes(4 * 11 * 1000), 1000, RATE, 10)
    with pytest.raises(BadSound, match="1000 to 384000"):
        raw_sound(bytes(400), 0, RATE, 10)


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_are_sounds_or_refused(kind: str) -> None:
    chance = random.Random(FORMATS.index(kind))
    whole = saved_sound(sound(0.2), kind)
    complaints: set[str] = set()
    for _ in range(thinning.part(20_000, 1 / 400)):
        try:
            found = open_sound(damaged(whole, chance), RATE, 5)
        except BadSound as error:
            complaints.add(str(error))
        else:
            assert 0 < len(found) <= 5 * RATE * 16
            assert found.dtype == np.float32
    assert max(map(len, complaints), default=0) < 200


async def test_helpers_survive_what_they_are_given() -> None:
    """Through a process with its bounds; nothing grows."""
    pool = MediaPool(ProcessBounds(memory=1 << 30, cpu=20.0), 1)
    chance, bounds = random.Random(9), ItemBounds(1, 5.0)
    files = [saved_sound(sound(0.2), kind) for kind in FORMATS]
    try:
        answer = await pool.prepare(Prepare(CUT, files[0], bounds))
        assert answer.shape == (3200,)
        assert np.array_equal(
            read(answer.data)[LOG_MEL], log_mel(CUT, open_sound(files[0], RATE, 5.0))
        )
        process = psutil.Process(pool.pids[0])
        before = process.memory_info().rss
        complaints = {""}
        for number in range(thinning.part(20_000, 1 / 400)):
            data = damaged(files[number % len(files)], chance)
            try:
                await pool.prepare(Prepare(CUT, data, bounds))
            except Unpreparable as error:
                complaints.add(str(error))
        assert max(map(len, complaints)) < 200
        if pool.pids == [process.pid]:
            assert process.memory_info().rss - before < 64 << 20
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("mel", "made"),
    [(FRAMES, magnitude_mel), (EMPHASISED, emphasised_mel), (PAIRS, paired_mel)],
)
async def test_each_kind_is_prepared_in_a_process(mel: Any, made: Any) -> None:
    pool, data = MediaPool(ProcessBounds(memory=1 << 30, cpu=20.0), 1), saved_sound(sound(0.2))
    try:
        answer = await pool.prepare(Prepare(mel, data, ItemBounds(1, 5.0)))
        assert np.array_equal(read(answer.data)[LOG_MEL], made(mel, open_sound(data, RATE, 5.0)))
    finally:
        pool.close()


async def test_a_sound_that_takes_too_much_ends_its_process_alone() -> None:
    whole = np.zeros(RATE * 600, np.float32)
    pool = MediaPool(ProcessBounds(memory=256 << 20, cpu=20.0), 1)
    try:
        with pytest.raises(Unpreparable, match=r"needs more memory|can't be prepared"):
            await pool.prepare(Prepare(MANY, saved_sound(whole, "FLAC"), ItemBounds(1, 1e4)))
        small = Prepare(MANY, saved_sound(sound(0.2)), ItemBounds(1, 5.0))
        assert (await pool.prepare(small)).shape == (3200,)
    finally:
        pool.close()


@pytest.mark.parametrize("missing", [1, 900, 15_000])
def test_a_wav_that_is_shorter_than_its_head_says_is_read_as_far_as_it_goes(missing: int) -> None:
    whole = saved_sound(sound(1), "WAV")
    there = open_sound(whole, 16_000, 30.0)
    found = open_sound(whole[:-missing], 16_000, 30.0)
    assert 0 < len(found) < len(there)
    near = len(found) - 64  # Where a rate is changed, the end reaches a little back.
    assert np.allclose(found[:near], there[:near], atol=1e-4)
