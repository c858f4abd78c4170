"""Sounds as the library's callers have them: arrays with their rate."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from penstock.errors import InvalidRequest
from penstock.media.sound_frames import MAX_RATE, MIN_RATE

WANTED = "(array, rate), a path, a URL or a file's bytes is needed"


def is_sound_array(given: Any) -> bool:
    """Whether it is one sound, and not several."""
    return isinstance(given, tuple) and len(given) == 2 and _is_number(given[1])


def sound_fields(given: Any, where: str) -> dict[str, Any]:
    """MediaSource's fields of one sound, (array, rate). Raises InvalidRequest for what is none."""
    if hasattr(given, "__array__"):
        raise InvalidRequest(f"{where} is an array without its rate; {WANTED}")
    if not is_sound_array(given):
        raise InvalidRequest(f"{where} is {type(given).__name__}; {WANTED}")
    samples, rate = given
    return {"samples": (_samples(samples, where), _rate(rate, where))}


def _is_number(value: Any) -> bool:
    """numpy's count too."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _rate(value: Any, where: str) -> int:
    if not (math.isfinite(value) and value == int(value) and MIN_RATE <= value <= MAX_RATE):
        raise InvalidRequest(
            f"{where} has the rate {value}; a whole number of {MIN_RATE} to {MAX_RATE} Hz is needed"
        )
    return int(value)


def _samples(given: Any, where: str) -> bytes:
    """float32 of floats, or of whole numbers of 16 or 32 bits, which are scaled to -1 to 1."""
    import numpy as np  # Here: who gives an array has it.

    array = np.asarray(given)
    if array.ndim != 1 or not array.size:
        raise InvalidRequest(
            f"{where} is an array of shape {list(array.shape)}; [samples] of one channel is needed"
        )
    if array.dtype in (np.int16, np.int32):
        array = array / -float(np.iinfo(array.dtype).min)
    elif array.dtype.kind != "f":
        raise InvalidRequest(
            f"{where} is an array of {array.dtype}; floats, int16 or int32 are needed"
        )
    return array.astype("<f4").tobytes()
