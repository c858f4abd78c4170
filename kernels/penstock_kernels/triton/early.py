"""Programmatic dependent launch: a kernel's programs take their places while the one before it in
the queue still runs, and wait there until all that it wrote can be seen.

Between two kernels of a queue a device empties and fills again, which a decode of one sequence pays
for after each of its short kernels. A kernel that is launched early does nothing in memory before
its `await_earlier`, not even with what was written long ago: so each of them is through only when
all kernels before it are, and whatever one reads or overwrites is settled.

See NVIDIA's CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization", and
`griddepcontrol` in the PTX ISA.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from penstock_kernels.triton.rounding import INTERPRETED

FIRST_CAPABILITY = 9
"""Major compute capability of the first GPUs that have it."""


@triton.jit
def await_earlier(EARLY: tl.constexpr):
    """The first thing that a kernel does which is launched with `launched_early`: waits for all
    kernels before it, and lets the next one take places that are free."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@cache
def launched_early(device: torch.device) -> Mapping[str, bool]:
    """Arguments of a launch, for a kernel that begins with `await_earlier(EARLY)`."""
    if not can_launch_early(device):
        return MappingProxyType({"EARLY": False})
    return MappingProxyType({"EARLY": True, "launch_pdl": True})


def can_launch_early(device: torch.device) -> bool:
    """Where kernels are only compiled, a Hopper is meant."""
    if INTERPRETED.value:
        return False
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device)[0] >= FIRST_CAPABILITY
