"""What ran on the device while some work did: its kernels by name, and the time that none of them
explains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

NAMED = 24
"""Kernels of a profile that have a row of their own; the others share one."""
NAME_LENGTH = 96
"""Characters of a kernel's name that are kept: a template of torch's has thousands."""
OTHERS = "others"
_ARGUMENTS = re.compile(r"\((?!anonymous namespace\)).*$", re.DOTALL)


class Interval(NamedTuple):
    """Something that ran on the device. Seconds of one clock."""

    name: str
    start: float
    end: float


def profiled(work: Callable[[], None]) -> list[Interval]:
    """Returns what the device did while `work` ran, copies included."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    return [
        Interval(event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA
    ]


def device_time(intervals: Iterable[Interval], steps: int) -> dict[str, float]:
    """Seconds: `span` from the first kernel's start to the last one's end; `busy`, in which
    something ran; `between`, idle between the steps at most: the longest gaps, one fewer than there
    were steps.

    intervals: in any order, perhaps overlapping.  Raises ValueError for none.
    """
    ordered = sorted(intervals, key=lambda each: each.start)
    if not ordered:
        raise ValueError("the profile has no work of the device in it")
    gaps = []
    reached = ordered[0].start
    for each in ordered:
        if each.start > reached:
            gaps.append(each.start - reached)
        reached = max(reached, each.end)
    span = reached - ordered[0].start
    between = sum(sorted(gaps, reverse=True)[: steps - 1])
    return {"span": span, "busy": span - sum(gaps), "between": between}


def kernel_times(intervals: Sequence[Interval], steps: int) -> list[dict[str, Any]]:
    """Returns for each kernel's `name`, the longest first, its `seconds` and `calls` in a step. Two
    that overlap, as one launched early does with the one before it, both count in full."""
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for each in intervals:
        name = shortened(each.name)
        seconds[name] = seconds.get(name, 0.0) + each.end - each.start
        calls[name] = calls.get(name, 0) + 1
    ordered = sorted(seconds, key=lambda name: -seconds[name])
    shown = [(name, seconds[name], calls[name]) for name in ordered[:NAMED]]
    if rest := ordered[NAMED:]:
        shown.append(
            (OTHERS, sum(seconds[name] for name in rest), sum(calls[name] for name in rest))
        )
    return [
        {"name": name, "seconds": taken / steps, "calls": count / steps}
        for name, taken, count in shown
    ]


def shortened(name: str) -> str:
    """A kernel's name without its arguments, and no longer than a table bears."""
    bare = _ARGUMENTS.sub("", name.removeprefix("void ")) or name
    return bare if len(bare) <= NAME_LENGTH else bare[: NAME_LENGTH - 1] + "…"
