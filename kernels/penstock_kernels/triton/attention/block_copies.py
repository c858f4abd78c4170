"""Copies of whole KV blocks: within the KV cache (for a fork), and to and from a staging buffer
(for a swap).

Copies are of raw bytes. Block numbers come from the host, so these launches can't be captured by
CUDA graphs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.tiles import COPY_BLOCK, COPY_WARPS


@triton.jit
def _copy(
    source,
    target,
    source_places,
    target_places,
    source_block,
    source_part,
    target_block,
    target_part,
    width,
    BLOCK: tl.constexpr,
):
    """`source_places` and `target_places` have a block number for each program of axis 0."""
    pair, part = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    begin = tl.load(source_places + pair).to(tl.int64) * source_block + part * source_part
    end = tl.load(target_places + pair).to(tl.int64) * target_block + part * target_part
    tl.store(target + end + at, tl.load(source + begin + at, mask=inside), mask=inside)


def copy_blocks(blocks: Tensor, sources: list[int], targets: list[int]) -> None:
    """blocks[:, target] = blocks[:, source] for each pair, one after another. Modifies `blocks`.

    `blocks` is [parts, blocks, width], with a contiguous last dimension (a cache [kv_heads, slots,
    head_dim] viewed by block). Pairs that depend on one another are launched separately.
    """
    for run in independent_runs(sources, targets):
        places = _numbers([sources[i] for i in run], blocks.device)
        _launch(blocks, blocks, places, _numbers([targets[i] for i in run], blocks.device))


def gather_blocks(blocks: Tensor, sources: list[int], staging: Tensor) -> None:
    """staging[i] = blocks[:, sources[i]]. Modifies `staging`, which is [at least len(sources),
    parts, width] of the same dtype, with a contiguous last dimension."""
    numbers = _numbers(sources, blocks.device)
    _launch(
        blocks, staging.transpose(0, 1), numbers, _numbers(list(range(len(sources))), blocks.device)
    )


def scatter_blocks(staging: Tensor, blocks: Tensor, targets: list[int]) -> None:
    """blocks[:, targets[i]] = staging[i], the inverse of gather_blocks. Modifies `blocks`. Targets
    must be distinct."""
    numbers = _numbers(targets, blocks.device)
    _launch(
        staging.transpose(0, 1), blocks, _numbers(list(range(len(targets))), blocks.device), numbers
    )


def independent_runs(sources: list[int], targets: list[int]) -> list[list[int]]:
    """Returns the pairs' indices in order, divided into runs within which any order gives the same
    result: a new run begins where a pair reads or writes what its run writes, or writes what its
    run reads."""
    runs: list[list[int]] = []
    read: set[int] = set()
    written: set[int] = set()
    for place, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if not runs or source in written or target in written or target in read:
            runs.append([])
            read, written = set(), set()
        runs[-1].append(place)
        read.add(source)
        written.add(target)
    return runs


def _numbers(blocks: list[int], device: torch.device) -> Tensor:
    host = torch.tensor(blocks, dtype=torch.int64)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def _launch(source: Tensor, target: Tensor, sources: Tensor, targets: Tensor) -> None:
    """`source` and `target` are [parts, blocks, width]."""
    if source.dtype != target.dtype or source.shape[0] != target.shape[0]:
        raise ValueError(
            f"{source.dtype} {tuple(source.shape)} can't be copied to {target.dtype} "
            f"{tuple(target.shape)}"
        )
    if not sources.shape[0]:
        return
    source, target = _as_bytes(source), _as_bytes(target)
    parts, _, width = source.shape
    _copy[(sources.shape[0], parts, triton.cdiv(width, COPY_BLOCK))](
        source=source,
        target=target,
        source_places=sources,
        target_places=targets,
        source_block=source.stride(1),
        source_part=source.stride(0),
        target_block=target.stride(1),
        target_part=target.stride(0),
        width=width,
        BLOCK=COPY_BLOCK,
        num_warps=COPY_WARPS,
    )


def _as_bytes(blocks: Tensor) -> Tensor:
    if blocks.stride(2) != 1:
        raise ValueError(
            f"a block's elements must lie together, not with strides {blocks.stride()}"
        )
    return blocks.view(torch.uint8)
