"""From a file's bytes to a sound's samples, of one channel and at the model's rate. Runs in a
helper process: the bytes are a stranger's."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator

import numpy as np
import soundfile
import soxr

from penstock.model.sound_facts import MAX_RATE, MIN_RATE

FORMATS = ("WAV", "FLAC", "OGG", "MP3", "AIFF", "AU")
"""The sound formats that libsndfile reads, for people."""
MAX_CHANNELS = 16
_READ = {"WAV", "WAVEX", "RF64", "W64", "FLAC", "OGG", "MP3", "AIFF", "AU"}
"""Formats that are read, by libsndfile's names."""
_BLOCK = 1 << 18
"""Samples of all channels that are decoded at a time."""


class BadSound(ValueError):
    """The bytes are no sound that is read here; says why, to follow "the sound"."""


def open_sound(data: bytes, rate: int, max_seconds: float) -> np.ndarray:
    """float32 [samples] at `rate` Hz: the mean of all channels. Raises BadSound, and MemoryError.

    As transformers' load_audio does. What a file's head says of its length is checked, and not
    believed: a WAV that is shorter is read to its end.
    """
    if not is_known(data):
        raise BadSound(f"has an unsupported format; supported: {', '.join(FORMATS)}")
    is_wav = data[:4] == b"RIFF"
    missing = missing_bytes(data)
    if missing and is_wav:
        data, missing = with_what_is_there(data), 0
    if missing:
        raise BadSound(f"is cut off: its head announces {missing} bytes more than it has")
    if data[:4] == b"OggS" and is_chained(data):
        # libsndfile would end with the first of them.
        raise BadSound("contains several sounds in a row (chained Ogg); send each by itself")
    if is_wav:
        data = with_length(data)
    try:
        with soundfile.SoundFile(_Bytes(data)) as file:
            _check(file, max_seconds)
            return at_rate(_blocks(file, max_seconds), file.samplerate, rate)
    except (BadSound, MemoryError):
        raise
    except Exception:  # libsndfile's decoders say whatever their damaged input leads them to.
        raise BadSound("is damaged: it can't be decoded") from None


class _Bytes(io.BytesIO):
    """What libsndfile reads from. It goes to wherever a file's head sends it, and an error here
    would be a traceback in the log."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return super().seek(0, io.SEEK_END)


def raw_sound(data: bytes, given: int, rate: int, max_seconds: float) -> np.ndarray:
    """A sound's samples at `rate`, from float32 samples of one channel at `given` Hz. Raises
    BadSound."""
    check_rate(given)
    if not data or len(data) % 4:
        raise BadSound(f"has {len(data)} bytes, not a whole number of float32 samples")
    samples = np.frombuffer(data, "<f4")
    if len(samples) > max_seconds * given:
        raise _too_long(len(samples) / given, max_seconds)
    return at_rate([samples], given, rate)


_BEGINNINGS = (b"fLaC", b"OggS", b"RF64", b"riff", b".snd")
_ID3_HEAD = 10


def is_known(data: bytes) -> bool:
    """Whether libsndfile is to read it."""
    if data[:4] == b"RIFF":
        return data[8:12] == b"WAVE"
    if data[:4] == b"FORM":
        return data[8:12] in (b"AIFF", b"AIFC")
    if data[:3] == b"ID3":
        return not _is_aac(data, _ID3_HEAD + _seven_bits(data[6:_ID3_HEAD]))
    return data[:4] in _BEGINNINGS or (_is_frame(data, 0) and not _is_aac(data, 0))


def _is_frame(data: bytes, at: int) -> bool:
    """Whether a frame of MPEG's begins there: with eleven bits."""
    return len(data) > at + 1 and data[at] == 0xFF and data[at + 1] >= 0xE0


def _is_aac(data: bytes, at: int) -> bool:
    """Whether it is one of AAC's, whose layer is 0."""
    return _is_frame(data, at) and data[at + 1] & 0xF6 == 0xF0


def _seven_bits(data: bytes) -> int:
    """A tag's size, in bytes: each of its own has seven bits of it."""
    size = 0
    for byte in data:
        size = size << 7 | byte & 0x7F
    return size


def _check(file: soundfile.SoundFile, max_seconds: float) -> None:
    if file.format not in _READ:
        raise BadSound(f"has an unsupported format; supported: {', '.join(FORMATS)}")
    check_rate(file.samplerate)
    if not 1 <= file.channels <= MAX_CHANNELS:
        raise BadSound(f"has {file.channels} channels; 1 to {MAX_CHANNELS} are read")
    stated = file.frames / file.samplerate
    # A file that was streamed states no length, or one beyond all bounds.
    if max_seconds < stated < 1e9:
        raise _too_long(stated, max_seconds)


def check_rate(rate: int) -> None:
    """Raises BadSound."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise BadSound(f"has {rate} samples a second; {MIN_RATE} to {MAX_RATE} are read")


def _too_long(seconds: float, most: float) -> BadSound:
    return BadSound(f"lasts {seconds:.0f} s; at most {most:g} are accepted (--max-media-seconds)")


def lasts_longer(most: float) -> BadSound:
    """What to raise where decoding comes to more."""
    return BadSound(
        f"lasts longer than {most:g} s, the most that is accepted (--max-media-seconds)"
    )


def _blocks(file: soundfile.SoundFile, max_seconds: float) -> Iterator[np.ndarray]:
    """The channels' mean, [samples] at a time."""
    rate, channels = file.samplerate, file.channels
    decoded = 0
    while True:
        block = file.read(_BLOCK // channels, dtype="float32", always_2d=True)
        if not len(block):
            return
        decoded += len(block)
        if decoded > max_seconds * rate:
            raise lasts_longer(max_seconds)
        yield block[:, 0] if channels == 1 else block.mean(axis=1)


def at_rate(blocks: Iterable[np.ndarray], given: int, rate: int) -> np.ndarray:
    """Joined, at another rate. Raises BadSound for samples that are no numbers."""
    parts, count = [], 0
    stream = None if given == rate else soxr.ResampleStream(given, rate, 1, dtype="float32")
    for block in blocks:
        if not np.isfinite(block).all():
            raise BadSound("contains samples that are not finite numbers")
        count += len(block)
        parts.append(block if stream is None else stream.resample_chunk(block))
    if not count:
        raise BadSound("has no samples")
    if stream is None:
        return np.concatenate(parts)
    parts.append(stream.resample_chunk(np.empty(0, np.float32), last=True))
    # As many as the sound's time has, whatever the filter's ends add or lack.
    out = np.zeros(-(-count * rate // given), np.float32)
    joined = np.concatenate(parts)[: len(out)]
    out[: len(joined)] = joined
    return out


_MARK = b"OggS\0"
_HEAD = 27
"""Bytes of a page before its table of lengths."""
_KIND = 5
_SEGMENTS = 26
_BEGINS = 0x02
"""The bit of a page that begins a logical stream."""


def is_chained(data: bytes) -> bool:
    """Returns whether a logical stream begins after another's content (chained). Streams that begin
    together are multiplexed, and are one file. Bytes between pages are skipped, as is a page that
    is cut off."""
    at, begun = data.find(_MARK), False
    while at >= 0 and at + _HEAD <= len(data):
        begins = bool(data[at + _KIND] & _BEGINS)
        if begins and begun:
            return True
        begun = begun or not begins
        lengths = at + _HEAD + data[at + _SEGMENTS]
        end = lengths + sum(data[at + _HEAD : lengths])
        at = end if data.startswith(_MARK, end) else data.find(_MARK, at + len(_MARK))
    return False


# What a file of chunks (WAV, RF64, W64, AIFF), or an AU, says of its own length: it may be a lie.

_FILE_HEAD = 12
"""Bytes before the first chunk of a WAV or AIFF file."""
_CHUNK = struct.Struct("<4sI")
_SAMPLES = {b"RIFF": (_CHUNK, b"data"), b"FORM": (struct.Struct(">4sI"), b"SSND")}
"""The head of a chunk, and the name of that with the samples, by how a file begins."""
_AU_HEAD = struct.Struct(">4sII")
"""An AU file's beginning: its mark, where the samples begin, and how many bytes they have."""
_UNKNOWN = {b"RIFF": 0x7FFF_0000, b"FORM": 0x7EFF_0000, b".snd": 0xFFFF_FFFF}
"""The lengths from which on one stands for "until the end": programs that stream write such."""
_LONG = struct.Struct("<Q")
_RF64_SIZE = 28
"""Place of the samples' length in an RF64 file, whose first chunk is always ds64 (EBU Tech 3306):
after the file's head, the chunk's, and the file's own length."""
_RF64_SAYS = 0xFFFF_FFFF
"""The length of a chunk whose own stands in ds64."""
_W64_CHUNK = struct.Struct("<16sQ")
"""The head of a W64 chunk: its GUID, and its length with the head; chunks begin at multiples of
8."""
_W64_HEAD = 40
_ENDLESS = 1 << 62
"""Lengths of 8 bytes from which on one stands for "until the end"."""
MAX_CHUNKS = 1024
"""Most chunks that are looked through for the samples'."""


def with_length(data: bytes) -> bytes:
    """The file with the length of its samples, where its head says 0 and samples follow: programs
    that stream leave it so."""
    at = _FILE_HEAD
    for _ in range(MAX_CHUNKS):
        if at + _CHUNK.size > len(data):
            return data
        name, size = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size
        if name == b"data":
            if size or _are_chunks(data, at):
                return data
            rest = min(len(data) - at, _UNKNOWN[b"RIFF"])
            return data[: at - 4] + rest.to_bytes(4, "little") + data[at:]
        at += size + size % 2
    return data


def _are_chunks(data: bytes, at: int) -> bool:
    """Whether nothing but whole chunks follows, so that there are no samples indeed."""
    for _ in range(MAX_CHUNKS):
        if at >= len(data):
            return True
        if at + _CHUNK.size > len(data):
            return False
        _, size = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size + size + size % 2
        if at > len(data) + 1:
            return False
    return False


def with_what_is_there(data: bytes) -> bytes:
    """A WAV file whose head announces more samples than it has, with the length of those: recorders
    that were stopped leave it so. Raises BadSound where it has none."""
    at, _ = _samples(data)
    rest = len(data) - at
    if rest < 1:
        raise BadSound("is cut off: it ends before its samples begin")
    return data[: at - 4] + rest.to_bytes(4, "little") + data[at:]


def missing_bytes(data: bytes) -> int:
    """How many bytes of samples the file announces and lacks; 0 for one that doesn't say."""
    at, size = _samples(data)
    unknown = _UNKNOWN.get(data[:4], _ENDLESS)
    return 0 if size >= unknown else max(0, at + size - len(data))


def _samples(data: bytes) -> tuple[int, int]:
    """Where a WAV, RF64, W64, AIFF or AU file's samples begin, and how many bytes its head says
    that they have; zeros for another file, and for one that has none."""
    if data[:4] == b".snd" and len(data) >= _AU_HEAD.size:
        _, at, size = _AU_HEAD.unpack_from(data)
        return at, size
    if data[:4] == b"riff":
        return _w64_samples(data)
    long = data[:4] == b"RF64"
    if data[:4] not in _SAMPLES and not long:
        return 0, 0
    chunk, wanted = _SAMPLES[b"RIFF" if long else data[:4]]
    at = _FILE_HEAD
    for _ in range(MAX_CHUNKS):
        if at + chunk.size > len(data):
            break
        name, size = chunk.unpack_from(data, at)
        at += chunk.size
        if name == wanted:
            if long and size == _RF64_SAYS and len(data) >= _RF64_SIZE + _LONG.size:
                size = _LONG.unpack_from(data, _RF64_SIZE)[0]
            return at, size
        at += size + size % 2
    return 0, 0


def _w64_samples(data: bytes) -> tuple[int, int]:
    at = _W64_HEAD
    for _ in range(MAX_CHUNKS):
        if at + _W64_CHUNK.size > len(data):
            break
        name, size = _W64_CHUNK.unpack_from(data, at)
        if size < _W64_CHUNK.size:
            break
        if name[:4] == b"data":
            return at + _W64_CHUNK.size, size - _W64_CHUNK.size
        at += size + -size % 8
    return 0, 0
