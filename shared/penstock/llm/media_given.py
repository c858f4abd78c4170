"""Media as the library's callers give them: in a message's parts, or next to a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from penstock.errors import InvalidRequest

# Pictures as the library's callers have them: objects of Pillow, arrays.

PICTURE_WANTED = "a PIL.Image, an array of uint8, a path, a URL or a file's bytes is needed"


def picture_fields(given: Any, where: str) -> dict[str, Any]:
    """MediaSource's fields of one picture. Raises InvalidRequest for what is none."""
    if hasattr(given, "convert") and hasattr(given, "tobytes"):  # Pillow's
        # Here: who gives one has Pillow.
        from penstock.media.picture import BadPicture, in_rgb

        try:
            rgb = in_rgb(given)
        except BadPicture as error:
            raise InvalidRequest(f"{where} {error}") from None
        return {"rgb": (rgb.tobytes(), rgb.width, rgb.height)}
    if hasattr(given, "__array_interface__"):
        return {"rgb": _picture_rows(given, where)}
    raise InvalidRequest(f"{where} is {type(given).__name__}; {PICTURE_WANTED}")


def _picture_rows(given: Any, where: str) -> tuple[bytes, int, int]:
    """RGB bytes, width and height of uint8 [height, width, 3], [3, height, width], or [height,
    width] in grey."""
    import numpy as np  # Here: who gives an array has it.

    array = np.asarray(given)
    shape = array.shape
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise InvalidRequest(
            f"{where} is an array of {array.dtype} {list(shape)}; uint8 [height, width, 3] is "
            "needed"
        )
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    elif shape[2] != 3 and shape[0] == 3:
        array = array.transpose(1, 2, 0)
    if array.shape[2] != 3 or not array.size:
        raise InvalidRequest(
            f"{where} is an array of shape {list(shape)}; [height, width, 3] is needed"
        )
    return array.tobytes(), array.shape[1], array.shape[0]


# Videos as the library's callers have them: arrays of frames, lists of pictures.

VIDEO_WANTED = (
    "frames (uint8 [frames, height, width, 3], or a list of PIL.Image), a path, a URL or a "
)
VIDEO_WANTED += "file's bytes is needed"
USUAL_RATE = 2.0
"""Frames per second, where nothing is said: what Qwen's own tools take."""
_KNOWN = (
    "fps",
    "total_num_frames",
    "frames_indices",
    "duration",
    "video_backend",
    "do_sample_frames",
)
"""What may be said of frames; the first three count, and the others are for vLLM's metadata."""


def is_one_video(given: Any) -> bool:
    """Whether it is one video, and not several."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        return True
    return _dimensions(given) == 4 or _are_pictures(given)


def video_fields(given: Any, where: str) -> dict[str, Any]:
    """MediaSource's fields of one video: frames, or (frames, {"fps": 2.0}). Raises InvalidRequest
    for what is none."""
    said: Mapping[str, Any] = {}
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        given, said = given
    data, width, height, count = _frames(given, where)
    rate = _frame_rate(said, count, where)
    return {"frames": (data, width, height, rate.numerator, rate.denominator)}


def _dimensions(given: Any) -> int | None:
    shape = getattr(given, "shape", None)
    return None if shape is None else len(shape)


def _are_pictures(given: Any) -> bool:
    if not isinstance(given, (list, tuple)) or not given:
        return False
    return all(hasattr(each, "convert") or _dimensions(each) == 3 for each in given)


def _frames(given: Any, where: str) -> tuple[bytes, int, int, int]:
    """Rows of all frames, width, height, frames."""
    if not _are_pictures(given) and _dimensions(given) != 4:
        raise InvalidRequest(f"{where} is {type(given).__name__}; {VIDEO_WANTED}")
    parts, sizes = [], set()
    for number, frame in enumerate(given):
        rows, width, height = picture_fields(frame, f"{where}, frame {number}")["rgb"]
        parts.append(rows)
        sizes.add((width, height))
    if len(sizes) != 1:
        raise InvalidRequest(f"{where} has frames of {len(sizes)} sizes; all must be of one")
    ((width, height),) = sizes
    return b"".join(parts), width, height, len(parts)


def _frame_rate(said: Mapping[str, Any], count: int, where: str) -> Fraction:
    """Frames per second, of those that are given."""
    unknown = said.keys() - set(_KNOWN)
    if unknown:
        raise InvalidRequest(
            f"{where}: {sorted(map(str, unknown))[0][:80]!r} is not known; {', '.join(_KNOWN)} are"
        )
    fps, total = said.get("fps", USUAL_RATE), said.get("total_num_frames")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps <= 1000:
        raise InvalidRequest(f"{where}: fps must be above 0, to 1000")
    rate = Fraction(fps).limit_denominator(100_000)
    if said.get("frames_indices") is not None and isinstance(total, int) and total >= count:
        rate = rate * count / total
    return rate.limit_denominator(100_000) or Fraction(1, 100_000)
