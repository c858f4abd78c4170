"""How long the device was at work and idle, from the intervals of its kernels and copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def device_time(intervals: Iterable[tuple[float, float]], steps: int) -> dict[str, float]:
    """Seconds: `span` from the first kernel's start to the last one's end; `busy`, in which
    something ran; `between`, idle between the steps at most: the longest gaps, one fewer than there
    were steps.

    intervals: (start, end), in any order, perhaps overlapping.  Raises ValueError for none.
    """
    ordered = sorted(intervals)
    if not ordered:
        raise ValueError("the profile has no work of the device in it")
    gaps = []
    reached = ordered[0][1]
    for start, end in ordered:
        if start > reached:
            gaps.append(start - reached)
        reached = max(reached, end)
    span = reached - ordered[0][0]
    between = sum(sorted(gaps, reverse=True)[: steps - 1])
    return {"span": span, "busy": span - sum(gaps), "between": between}


def profiled(work: Callable[[], None]) -> list[tuple[float, float]]:
    """The device's intervals while `work` ran, in seconds of the profiler's clock."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    return [
        (event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA
    ]
