"""Which frames of a video a model is shown.

The rules are those of the families' video processors in transformers, down to how they round.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from penstock.model.media_facts import FrameSampling


def sampled(total: int, rate: Fraction, sampling: FrameSampling, group: int) -> tuple[int, ...]:
    """The numbers of the frames, ascending, at least one.

    total: frames of the video, at least 1.  rate: frames per second.  group: frames that a patch
    spans; as many as make whole groups are taken, where there are enough.
    """
    wanted = _wanted(total, rate, sampling, group)
    if wanted >= total:
        return tuple(range(total))
    if sampling.spread == "ends":
        places = np.linspace(0, total - 1, wanted).round().astype(int)
    else:
        # Single precision, as torch.arange has it.
        places = (np.arange(wanted) * (total / wanted)).astype(np.float32).astype(int)
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
