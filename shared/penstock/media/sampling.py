"""Which frames of a video a model is shown.

The rules are those of the families' video processors in transformers, down to how they round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from penstock.forms.video import FrameSampling

REPEATING = ("minicpmv", "molmo2")
"""Rules that show a frame of a slow video several times."""
HARDLY = 1e-4
"""Seconds by which a frame may be too early for MiniMax M3's rule."""


def sampled(total: int, rate: Fraction, sampling: FrameSampling, group: int) -> tuple[int, ...]:
    """The numbers of the frames, ascending, at least one.

    total: frames of the video, at least 1.  rate: frames per second.  group: frames that a patch
    spans; as many as make whole groups are taken, where there are enough.
    """
    if sampling.rule:
        return _by_rule(total, float(rate), sampling, group)
    wanted = _wanted(total, rate, sampling, group)
    if wanted >= total:
        return tuple(range(total))
    if sampling.spread == "ends":
        places = np.linspace(0, total - 1, wanted).round().astype(int)
    else:
        # Single precision, as torch.arange has it.
        first = total / wanted / 2 if sampling.spread == "middles" else 0.0
        places = (first + np.arange(wanted) * (total / wanted)).astype(np.float32).astype(int)
    return tuple(min(int(place), total - 1) for place in places)


def _wanted(total: int, rate: Fraction, sampling: FrameSampling, group: int) -> int:
    """How many frames; at least 1."""
    most = min(sampling.max_frames, total)
    if not sampling.fps:
        return max(1, _whole(min(sampling.num_frames or most, most), sampling, group))
    if sampling.num_frames:
        most = min(most, sampling.num_frames)
    by_time = total / float(rate) * sampling.fps
    if sampling.spread == "ends":
        by_time = int(by_time)
    return max(1, _whole(min(max(by_time, sampling.min_frames), most), sampling, group))


def _whole(frames: float, sampling: FrameSampling, group: int) -> int:
    """Rounded down to whole groups; where frames lie from end to end, any number is taken."""
    if sampling.spread == "ends" or frames < group:
        return int(frames)
    return int(frames // group) * group


def _by_rule(total: int, rate: float, sampling: FrameSampling, group: int) -> tuple[int, ...]:
    """Frames by the family's own rule. The last number may stand twice, where groups would lack
    one."""
    most = min(sampling.num_frames or sampling.max_frames, sampling.max_frames)
    seconds = total / rate
    if sampling.rule == "glm4v":
        found = _glm4v(total, rate, seconds, sampling)
    elif sampling.rule == "glm46v":
        found = _glm46v(total, rate, seconds, group)
    elif sampling.rule == "molmo2":
        found = _molmo2(total, rate, sampling.fps, most)
    elif sampling.rule == "apart":
        found = list(_apart(total, rate, sampling.fps))
    else:
        found = _minicpmv(total, rate, seconds, most)
    if sampling.rule not in REPEATING:
        found = list(dict.fromkeys(found)) or [0]
        found += found[-1:] * (-len(found) % group)
    if len(found) > most:
        found = _some(found, max(1, int(most // group) * group))
    return tuple(found)


def _some(numbers: list[int], count: int) -> list[int]:
    """Returns `count` of the numbers, evenly spread from the first to the last."""
    return [numbers[at] for at in np.linspace(0, len(numbers) - 1, count, dtype=int)]


def _glm4v(total: int, rate: float, seconds: float, sampling: FrameSampling) -> list[int]:
    """`fps` for each second, of a long video no more than of one of `longest` seconds."""
    last, fps = total - 1, sampling.fps
    if seconds <= sampling.longest:
        count = max(math.floor(seconds * fps), 1)
        return [min(last, math.ceil(number * rate / fps)) for number in range(count)]
    count = int(sampling.longest * fps)
    if count >= total:
        return list(range(total))
    return [min(last, math.ceil(time * rate)) for time in np.linspace(0, seconds, count)]


def _glm46v(total: int, rate: float, seconds: float, group: int) -> list[int]:
    """Three groups for each second of a short video, one of a longer one, half of one of a long
    one; 640 frames at most."""
    length = min(seconds, 2400)
    groups = 3 if length <= 30 else 1 if length <= 300 else 0.5
    count = min(int(length * groups * group), 640)
    if total < count:
        return np.linspace(0, total - 1, count, dtype=int).tolist()
    found = list(_spaced(total, 1 / rate, 1 / (group * groups), int(seconds)))
    if len(found) < count:
        return np.linspace(found[0], found[-1], count, dtype=int).tolist()
    if len(found) > count:
        return np.linspace(0, total - 1, count, dtype=int).tolist()
    return found


def _spaced(total: int, each: float, step: float, seconds: int) -> Iterator[int]:
    """The first frame from each multiple of `step` on, seconds, until `seconds`. each: seconds of a
    frame."""
    due = 0.0
    for number in range(total):
        if number * each >= due:
            due += step
            yield number
            if due >= seconds:
                return


def _apart(total: int, rate: float, fps: float) -> Iterator[int]:
    """The first frame, each next one that is about 1 / fps seconds after the one before it, and
    the last."""
    number = 0
    while number < total - 1:
        yield number
        due = number / rate + 1 / fps - HARDLY
        number = max(math.ceil(due * rate), number + 1)
    yield total - 1


def _molmo2(total: int, rate: float, fps: float, most: int) -> list[int]:
    """The frames nearest to each multiple of 1 / fps seconds, and the last; of a video that is
    longer than so many last, `most` from the first to the last."""
    last = total - 1
    if total <= 2 or total / rate > (most - 1) / fps:
        return np.linspace(0, last, min(most, total)).astype(int).tolist()
    places = np.arange(0.0, last, rate / fps).round().astype(int).tolist()
    return places if places[-1] == last else [*places, last]


def _minicpmv(total: int, rate: float, seconds: float, most: int) -> list[int]:
    """One for each second; of a video of more seconds than frames may be shown, some of those that
    are a tenth of a second apart."""
    last = total - 1
    if seconds <= most:
        return [min(int(number * rate), last) for number in range(math.ceil(seconds))]
    tenths = int(seconds / 0.1)
    shown: Sequence[int] = range(tenths)
    if tenths > most:
        shown = np.linspace(0, tenths - 1, most, dtype=int).tolist()
    return [min(int(round(number * 0.1, 1) * rate), last) for number in shown]
