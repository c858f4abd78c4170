"""The samples of what libsndfile doesn't read, such as M4A and WebM, and the sound of videos, by
PyAV (FFmpeg's libraries). Runs in a helper process: the bytes are a stranger's."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.media import sound
from penstock.media.clip import MAX_PACKETS, can_decode, refuse_file
from penstock.media.sound import MAX_CHANNELS, BadSound, at_rate, check_rate, lasts_longer

FORMATS_SAID = (
    *("M4A", "AAC", "WebM", "CAF", "AMR", "WMA"),
    *("MP4", "QuickTime", "Matroska", "AVI", "MPEG"),
)
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,aac,caf,avi,mpegts,mpeg,asf,amr"
"""What is read, by FFmpeg's names. None of them opens another file."""
CODECS = (
    *("aac", "alac", "opus", "vorbis", "mp3float", "mp2", "mp2float", "flac", "ac3", "eac3"),
    *("amrnb", "amrwb", "wmav1", "wmav2", "adpcm_ima_qt", "adpcm_ima_wav", "adpcm_ms"),
    *("pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be"),
    *("pcm_f32le", "pcm_f32be", "pcm_u8", "pcm_s8", "pcm_alaw", "pcm_mulaw"),
)
"""FFmpeg's decoders that may run."""
_SCALES = {"u1": 1 / 128, "i2": 1 / (1 << 15), "i4": 1 / (1 << 31)}
"""Factors that make 1 of the loudest sample, by the samples' type."""
_BLOCK = 1 << 16
"""Samples that are resampled at a time, at least."""
_BEGINNINGS = (b"\x1aE\xdf\xa3", b"caff")
_GAP = 0.1
"""Seconds by which a video's sound may begin late without silence before it: what an encoder adds
is shorter."""


def open_any(data: bytes, rate: int, max_seconds: float) -> np.ndarray:
    """Does what open_sound does, of all formats. Raises what it raises."""
    if sound.is_known(data):
        return sound.open_sound(data, rate, max_seconds)
    if not can_decode():
        raise BadSound(
            f"has an unsupported format; supported: {', '.join(sound.FORMATS)}; "
            f"{', '.join(FORMATS_SAID)} need PyAV, which the server lacks (pip install "
            "penstock-llm[video])"
        )
    try:
        with Soundtrack(data, max_seconds) as track:
            return at_rate(track.blocks(), track.rate, rate)
    except (BadSound, MemoryError):
        raise
    except Exception:  # FFmpeg's and soxr's messages about a client's file aren't passed on.
        raise BadSound("is damaged: it can't be decoded") from None


class Soundtrack:
    """The first sound of a file. Use it as a context manager.

    rate: samples per second.
    """

    def __init__(self, data: bytes, max_seconds: float) -> None:
        """Raises BadSound, MemoryError."""
        import av

        av.logging.set_level(None)
        self._errors = (av.FFmpegError, ValueError, ArithmeticError)
        self._max_seconds = max_seconds
        options = {
            "format_whitelist": FORMATS,
            "codec_whitelist": ",".join(CODECS),
            "protocol_whitelist": "none",
        }
        try:
            self._file = av.open(
                io.BytesIO(data),
                mode="r",
                options=options,
                metadata_errors="ignore",
                io_open=refuse_file,
            )
        except MemoryError:
            raise
        except Exception:  # FFmpeg's message about a client's file isn't passed on.
            if data[4:8] == b"ftyp" or data[:4] in _BEGINNINGS:
                raise BadSound("is damaged or cut off") from None
            every = ", ".join((*sound.FORMATS, *FORMATS_SAID))
            raise BadSound(f"has an unsupported format; supported: {every}") from None
        try:
            self._stream = self._checked()
            self._frames = self._decoded()
            self._first = self._begun()
            self.rate = int(self._first.sample_rate)
            check_rate(self.rate)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Soundtrack:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def blocks(self) -> Iterator[np.ndarray]:
        """float32: the channels' mean, [samples] at a time. Raises BadSound."""
        parts, held = [self._silence()], len(self._silence())
        count = held
        for frame in self._all():
            if frame.sample_rate != self.rate:
                raise BadSound("changes its sampling rate")
            count += frame.samples
            if count > self._max_seconds * self.rate:
                raise lasts_longer(self._max_seconds)
            parts.append(_mean(frame))
            held += frame.samples
            if held >= _BLOCK:
                yield np.concatenate(parts)
                parts, held = [], 0
        if held:
            yield np.concatenate(parts)

    def _checked(self) -> Any:
        if not self._file.streams.audio:
            raise BadSound("has no sound in it")
        stream = self._file.streams.audio[0]
        context = stream.codec_context
        if context is None or context.codec.name not in CODECS:
            raise BadSound(
                "is coded in a way that isn't read; AAC, ALAC, Opus, Vorbis, MP3, FLAC, AC-3, AMR, "
                "WMA and PCM are"
            )
        context.thread_type = "NONE"
        context.thread_count = 1
        return stream

    def _begun(self) -> Any:
        """The first frame: only it knows the rate for certain."""
        first = next(self._frames, None)
        if first is None:
            raise BadSound("has no samples")
        return first

    def _all(self) -> Iterator[Any]:
        yield self._first
        yield from self._frames

    def _decoded(self) -> Iterator[Any]:
        """All frames. Of a file that is cut off, or damaged somewhere, those that there are."""
        try:
            for number, packet in enumerate(self._file.demux()):
                if number > MAX_PACKETS:
                    raise BadSound(f"has more than {MAX_PACKETS} packets")
                if packet.stream is not self._stream:
                    continue
                for frame in self._of(packet):
                    if frame.layout.nb_channels > MAX_CHANNELS:
                        raise BadSound(
                            f"has {frame.layout.nb_channels} channels; 1 to {MAX_CHANNELS} are read"
                        )
                    if frame.samples:
                        yield frame
        except (BadSound, MemoryError):
            raise
        except self._errors:
            return

    def _of(self, packet: Any) -> list[Any]:
        """A packet's frames; a damaged one has none."""
        try:
            return list(packet.decode())
        except MemoryError:
            raise
        except self._errors:
            return []

    def _silence(self) -> np.ndarray:
        """What comes before the sound of a video that begins later than its pictures, so that times
        are the video's."""
        begins, file = self._first.time, self._file.start_time
        late = 0.0 if begins is None or file is None else begins - file / 1e6
        if not _GAP < late <= self._max_seconds:
            return np.zeros(0, np.float32)
        return np.zeros(round(late * self.rate), np.float32)


def _mean(frame: Any) -> np.ndarray:
    """float32 [samples]: the mean of a frame's channels."""
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    mean = samples.mean(axis=0, dtype=np.float64)
    if samples.dtype == np.uint8:
        mean -= 128
    return np.asarray(mean * _SCALES.get(samples.dtype.str[1:], 1.0), np.float32)
