"""Computes how many KV blocks fit on a device in addition to the weights and the largest steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from penstock.errors import StartupError
from penstock_worker.machine.memory import blocks_that_take, free_memory, refuse_too_few

MARGIN = 0.01
"""Share of the device's memory that is left free, for fragmentation in the allocator and for
kernels that the profiling steps didn't run."""


class DeviceMemory(Protocol):
    """A device's memory, and torch's caching allocator in this process. All values are in bytes."""

    def total(self) -> int:
        """The device's whole memory."""

    def free(self) -> int:
        """Memory that no process has allocated."""

    def reserved(self) -> int:
        """What the allocator holds, used or not."""

    def allocated(self) -> int:
        """The part of `reserved` that tensors use."""

    def peak(self) -> int:
        """Maximum of `allocated` since `forget_peak`."""

    def forget_peak(self) -> None:
        """Starts a new measurement of `peak`."""

    def release(self) -> None:
        """Returns cached memory that no tensor uses to the device."""

    def wait(self) -> None:
        """Waits until the device has finished all queued work. Raises what failed there."""


class CUDAMemory:
    """The memory of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def free(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]

    def reserved(self) -> int:
        return torch.cuda.memory_reserved(self._device)

    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def forget_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def release(self) -> None:
        torch.cuda.empty_cache()

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)


class HostMemory:
    """The CPU's memory under Triton's interpreter, where there is no caching allocator to watch."""

    def total(self) -> int:
        return free_memory()

    def free(self) -> int:
        return free_memory()

    def reserved(self) -> int:
        return 0

    def allocated(self) -> int:
        return 0

    def peak(self) -> int:
        return 0

    def forget_peak(self) -> None:
        pass

    def release(self) -> None:
        pass

    def wait(self) -> None:
        pass


def memory_of(device: torch.device) -> DeviceMemory:
    return CUDAMemory(device) if device.type == "cuda" else HostMemory()


@dataclass(frozen=True)
class MemoryUsage:
    """What takes up a device's memory, apart from the KV cache. All values are in bytes."""

    total: int
    others: int
    """Bytes that are taken by other processes and by this process's driver context."""
    weights: int
    """Bytes that the model's weights take."""
    steps: int
    """Bytes that the largest step takes, in addition to the weights."""
    graphs: int
    """Bytes that captured CUDA graphs may take."""

    @property
    def margin(self) -> int:
        """Memory that is left free; see MARGIN."""
        return int(self.total * MARGIN)

    def left(self, utilization: float) -> int:
        """Returns the bytes left for the KV cache. `utilization` is the share of the device's
        memory that everything together may take."""
        taken = self.others + self.weights + self.steps + self.graphs + self.margin
        return int(self.total * utilization) - taken

    def __str__(self) -> str:
        return (
            f"of {_gib(self.total)} other processes and the driver have {_gib(self.others)}, "
            f"weights {_gib(self.weights)}, the largest step takes {_gib(self.steps)}, CUDA graphs "
            f"{_gib(self.graphs)}, {_gib(self.margin)} are a margin"
        )


def measure(
    memory: DeviceMemory,
    prefill: Callable[[], object],
    decode: Callable[[], object],
    *,
    graphs: int,
    graph_bytes: int,
) -> MemoryUsage:
    """Runs the largest prefill and the longest decode, and returns what they took. The weights must
    have been loaded.

    `graphs` is the number of CUDA graphs that may be captured, each of which takes `graph_bytes`.
    Their activations share one memory pool, which takes as much as a decode step does.

    Raises StartupError if one of these steps doesn't fit in memory.
    """
    weights = memory.allocated()
    try:
        prefilled, decoded = (_taken(memory, step) - weights for step in (prefill, decode))
    except torch.OutOfMemoryError as error:
        raise StartupError(
            f"not enough memory on the device for one step of the largest size: {error}; "
            "max_num_batched_tokens or max_num_seqs must be less"
        ) from error
    memory.release()
    return MemoryUsage(
        total=memory.total(),
        others=memory.total() - memory.free() - memory.reserved(),
        weights=weights,
        steps=max(prefilled, decoded),
        graphs=decoded + graphs * graph_bytes if graphs else 0,
    )


def device_kv_blocks(
    usage: MemoryUsage,
    *,
    block_bytes: int,
    utilization: float,
    wanted: int | None,
    useful: int,
    least: int = 1,
) -> int:
    """Returns the number of blocks for the KV cache.

    `block_bytes`: size of one block.
    `utilization`: share of the device's memory that may be taken.
    `wanted`: the number that the user set, or None.
    `useful`: how many blocks could ever be in use at once.
    `least`: how many a single token takes.

    Raises StartupError if there is no room for what the user set, or for a single token, or if the
    user set too few for one.
    """
    if wanted is not None:
        if wanted * block_bytes > usage.left(1.0):
            raise StartupError(
                f"num_kv_blocks is {wanted}, which takes {_gib(wanted * block_bytes)}; "
                f"{_gib(max(0, usage.left(1.0)))} are left: {usage}"
            )
        refuse_too_few(wanted, least)
        return wanted
    affordable = usage.left(utilization) // block_bytes
    if affordable < least:
        raise StartupError(
            f"not enough memory on the device for the KV cache: {blocks_that_take(least)} "
            f"{_gib(least * block_bytes)}, and {utilization:g} of the device may be used "
            f"(gpu_memory_utilization); {usage}"
        )
    return min(affordable, useful)


def _taken(memory: DeviceMemory, step: Callable[[], object]) -> int:
    memory.forget_peak()
    step()
    memory.wait()
    return memory.peak()


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.2f} GiB"
