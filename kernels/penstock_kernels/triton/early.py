"""Programmatic dependent launch: a kernel's programs take their places while the one before it in
the queue still runs, and wait there until all that it wrote can be seen.

Between two kernels of a queue a device empties and fills again, which a decode of one sequence pays
for after each of its short kernels. A kernel that is launched early reads and writes nothing before
its `await_earlier`, not even with what was written long ago: so each of them is through only when
all kernels before it are, and whatever one reads or overwrites is settled. All that it may do is
`fetch_ahead`: the second-level cache is where all processors of a GPU see the same memory, so what
it holds is never stale.

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

_AHEAD_BYTES = tl.constexpr(6 << 20)
"""Most that one kernel has fetched ahead: about what the memory delivers during the norm or the
gate before a matrix product. A tenth of an H100's second-level cache."""
_LINE_BYTES = tl.constexpr(128)
_LINES = tl.constexpr(8)
"""Most lines of a row that are fetched ahead."""


@triton.jit
def await_earlier(EARLY: tl.constexpr):
    """The first thing that a kernel does which is launched with `launched_early`: waits for all
    kernels before it, and lets the next one take places that are free."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def fetch_ahead(
    weight,
    weight_row,
    column,
    in_columns,
    outputs,
    inputs,
):
    """Asks for the beginnings of a tile's rows of weights to be brought into the second-level
    cache, while kernels before this one still compute and the memory has little to do. Called
    before await_earlier, and only where no other program reads the same rows.

    `weight`: [outputs, inputs] in rows that begin `weight_row` numbers apart. `column`,
    `in_columns`: [columns], which rows, and which of them exist."""
    LINE: tl.constexpr = _LINE_BYTES * 8 // weight.dtype.element_ty.primitive_bitwidth
    line = tl.arange(0, _LINES)
    most = tl.minimum(_AHEAD_BYTES // _LINE_BYTES // outputs, tl.cdiv(inputs, LINE))
    place = weight + column.to(tl.int64)[:, None] * weight_row + (line * LINE)[None, :]
    wanted = in_columns[:, None] & (line < most)[None, :]
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
        "=r,l,r",
        [place.to(tl.int64), wanted.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@cache
def launched_early(device: torch.device) -> Mapping[str, bool]:
    """Arguments of a launch, for a kernel that begins with `await_earlier(EARLY)`."""
    if not can_launch_early(device):
        return MappingProxyType({"EARLY": False})
    return MappingProxyType({"EARLY": True, "launch_pdl": True})


def can_launch_early(device: torch.device) -> bool:
    """Whether kernels may be launched early (Hopper and later). If kernels are only compiled, it is
    for a Hopper."""
    if INTERPRETED.value:
        return False
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device)[0] >= FIRST_CAPABILITY
