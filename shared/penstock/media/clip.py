"""From a video file's bytes to some of its frames, by PyAV (FFmpeg's libraries). Runs in a helper
process: the bytes are a stranger's.

The file's packets are counted before any of them is decoded: what a header says of a file's length
may be wrong, and is not believed.
"""

from __future__ import annotations

import importlib.util
import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
from PIL import Image

from penstock.media.picture import WHITE, BadPicture, in_rgb

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,gif"
"""What is read, by FFmpeg's names. None of them opens another file."""
FORMATS_SAID = "MP4, QuickTime, WebM, Matroska, AVI, MPEG, GIF"
CODECS: tuple[str, ...] = (
    "h264",
    "hevc",
    "vp8",
    "vp9",
    "libdav1d",
    "av1",
    "mpeg4",
    "mpeg2video",
    "mpeg1video",
)
CODECS += ("mjpeg", "gif")
"""FFmpeg's decoders that may run."""
USUAL_RATE = Fraction(24)
"""Frames per second, of a file that doesn't say."""
MAX_RATE = 1000
MAX_PACKETS = 1 << 20
"""Most packets of all of a file's streams."""


def can_decode() -> bool:
    """Whether PyAV is installed."""
    return importlib.util.find_spec("av") is not None


@dataclass(frozen=True, slots=True)
class _Packets:
    """Packets of the stream of pictures. times: when each is shown, ascending, in units of the
    stream's; None where the file doesn't say.  keys: times of those from which on decoding may
    begin."""

    count: int
    times: tuple[int, ...] | None
    keys: tuple[int, ...]


class Clip:
    """An opened video. Use it as a context manager."""

    def __init__(
        self,
        data: bytes,
        *,
        seconds: float,
        max_pixels: int,
        background: tuple[int, ...] = WHITE,
    ) -> None:
        """seconds: that it may last.  max_pixels: of a frame.  background: shown through
        transparent parts. Raises BadPicture, MemoryError."""
        import av

        av.logging.set_level(None)
        self._av = av
        self._errors = (av.FFmpegError, ValueError, ArithmeticError)
        self._data = data
        self._max_pixels = max_pixels
        self._background = background
        self._options = {
            "format_whitelist": FORMATS,
            "codec_whitelist": ",".join(CODECS),
            "protocol_whitelist": "none",
            "max_pixels": str(max_pixels),
        }
        try:
            self._file = self._opened()
        except MemoryError:
            raise
        except Exception:  # FFmpeg's message about a client's file isn't passed on.
            raise BadPicture(f"has an unsupported format; supported: {FORMATS_SAID}") from None
        try:
            self._stream = self._checked()
            self._packets = self._counted(seconds)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Clip:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def total(self) -> int:
        """Frames, by the packets that there are."""
        return self._packets.count

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of a frame, pixels, as it is coded: it may be turned."""
        return self._stream.codec_context.height, self._stream.codec_context.width

    @property
    def rate(self) -> Fraction:
        """Frames per second."""
        stated = self._stream.average_rate
        if stated is None or not 0 < stated <= MAX_RATE:
            return USUAL_RATE
        return Fraction(stated)

    def frames(self, wanted: Sequence[int]) -> Iterator[Image.Image]:
        """The frames of these numbers, ascending, upright, in RGB. Frames that are damaged are
        those that the decoder makes of them; one that it leaves out is the next one, or the last.
        Raises BadPicture where nothing can be decoded."""
        try:
            yield from self._found(wanted)
        except (BadPicture, MemoryError):
            raise
        except self._errors:
            raise BadPicture("is damaged: it can't be decoded") from None

    def _opened(self) -> Any:
        return self._av.open(
            io.BytesIO(self._data),
            mode="r",
            options=self._options,
            metadata_errors="ignore",
            io_open=refuse_file,
        )

    def _checked(self) -> Any:
        """The stream of pictures."""
        max_pixels = self._max_pixels
        if not self._file.streams.video:
            raise BadPicture("has no pictures in it")
        stream = self._file.streams.video[0]
        context = stream.codec_context
        if context is None or context.codec.name not in CODECS:
            raise BadPicture(
                "is coded in a way that isn't read; H.264, H.265, VP8, VP9, AV1, MPEG-1, 2 and 4, "
                "Motion JPEG and GIF are"
            )
        width, height = context.width, context.height
        if width < 1 or height < 1:
            raise BadPicture("has no pixels")
        if width * height > max_pixels:
            raise BadPicture(
                f"has frames of {width} × {height} pixels; at most {max_pixels} are accepted "
                "(--max-media-pixels)"
            )
        context.options = {"max_pixels": str(max_pixels)}
        context.thread_type = "NONE"
        context.thread_count = 1
        return stream

    def _counted(self, most: float) -> _Packets:
        times: list[int | None] = []
        keys: list[int] = []
        try:
            for number, packet in enumerate(self._file.demux()):
                if number > MAX_PACKETS:
                    raise BadPicture(f"has more than {MAX_PACKETS} packets")
                if packet.stream is not self._stream or not packet.size:
                    continue
                times.append(packet.pts)
                if packet.is_keyframe and packet.pts is not None:
                    keys.append(packet.pts)
        except MemoryError:  # FFmpeg's is one of its errors too, and no fault of the file's.
            raise
        except self._errors:
            pass  # A file that is cut off has the frames that are there.
        if not times:
            raise BadPicture("has no pictures in it")
        known = [time for time in times if time is not None]
        whole = len(set(known)) == len(times)
        found = _Packets(len(times), tuple(sorted(known)) if whole else None, tuple(sorted(keys)))
        self._check_length(found, most)
        return found

    def _check_length(self, packets: _Packets, most: float) -> None:
        seconds = float(packets.count / self.rate)
        if packets.times is not None and self._stream.time_base:
            seconds = max(
                seconds, float((packets.times[-1] - packets.times[0]) * self._stream.time_base)
            )
        if seconds > most:
            raise BadPicture(
                f"lasts {seconds:.1f} s; at most {most:g} s are accepted (--max-media-seconds)"
            )

    def _found(self, wanted: Sequence[int]) -> Iterator[Image.Image]:
        times = self._packets.times
        if times is None:
            yield from self._picked(list(wanted), enumerate(self._file.decode(self._stream)))
            return
        left = [times[number] for number in wanted]
        while left:
            shown = list(self._from_key(left))
            if not shown:  # The file's index leads astray.
                yield from self._picked(left, self._timed(self._again()))
                return
            yield from shown
            left = left[len(shown) :]

    def _from_key(self, times: list[int]) -> Iterator[Image.Image]:
        """Pictures of the first of these frames, as far as they are decoded from one place on; none
        where decoding from there begins later than the first of them."""
        keys = self._packets.keys
        place = bisect_right(keys, times[0]) - 1
        end = keys[place + 1] if place + 1 < len(keys) else None
        near = [time for time in times if end is None or time < end]
        if place > 0:
            self._file.seek(keys[place], stream=self._stream)
        else:
            self._again()
        found = self._timed(self._file)
        first = next(found, None)
        if first is None or (place > 0 and first[0] > times[0]):
            return iter(())
        return self._picked(near, chain([first], found))

    def _again(self) -> Any:
        """The file, at its beginning."""
        self._file.close()
        self._file = self._opened()
        self._stream = self._checked()
        return self._file

    def _timed(self, file: Any) -> Iterator[tuple[int, Any]]:
        return ((frame.pts, frame) for frame in file.decode(self._stream) if frame.pts is not None)

    def _picked(
        self, wanted: list[int], frames: Iterator[tuple[int, Any]]
    ) -> Iterator[Image.Image]:
        """Yields for each of `wanted`, ascending, the first frame whose number is no less; at the
        end of the frames, the last one."""
        waiting, last = iter(wanted), None
        number = next(waiting, None)
        try:
            for at, frame in frames:
                last = frame
                while number is not None and at >= number:
                    yield self._upright(frame)
                    number = next(waiting, None)
                if number is None:
                    return
        except MemoryError:
            raise
        except self._errors:
            if last is None:
                raise
        while number is not None:
            if last is None:
                raise BadPicture("is damaged: it can't be decoded")
            yield self._upright(last)
            number = next(waiting, None)

    def _upright(self, frame: Any) -> Image.Image:
        """Turned as the file says that the camera was held."""
        clear = any(part.is_alpha for part in frame.format.components) or frame.format.has_palette
        rows = frame.to_ndarray(format="rgba" if clear else "rgb24")
        quarters = round(frame.rotation / 90) % 4
        turned = Image.fromarray(np.ascontiguousarray(np.rot90(rows, quarters)))
        return in_rgb(turned, self._background)


def refuse_file(*_: object) -> Any:
    """Refuses another file, which FFmpeg would open because this one names it."""
    raise PermissionError("a file leads to another one")
