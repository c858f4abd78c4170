"""How many KV blocks a device has room for, beside the weights and the largest steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from penstock.errors import StartupError
from penstock_worker.machine.memory import free_memory

MARGIN = 0.01
"""Share of the device's memory that is left alone: what the allocator loses between pieces of
unlike sizes, and what kernels that were not rehearsed take."""


class DeviceMemory(Protocol):
    """A device's memory, and what torch's allocator in this process has of it. Bytes."""

    def total(self) -> int: ...

    def free(self) -> int:
        """That nobody has."""

    def reserved(self) -> int:
        """That the allocator has from the device, used or not."""

    def allocated(self) -> int:
        """Of these, used by tensors."""

    def peak(self) -> int:
        """The most that `allocated` was since `forget_peak`."""

    def forget_peak(self) -> None: ...

    def release(self) -> None:
        """Give back what the allocator has and no tensor uses."""

    def wait(self) -> None:
        """Until the device has done all that was queued. Raises what failed there."""


class CUDAMemory:
    """Of one GPU."""

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
    """Of the CPU under Triton's interpreter: there is no allocator to watch."""

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
    """What a device's memory goes to, beside the KV pool. Bytes.

    others: other processes, and this one's driver context.  weights: of the model.  steps: what
    the largest step takes beside them.  graphs: what captured graphs may take.
    """

    total: int
    others: int
    weights: int
    steps: int
    graphs: int

    @property
    def margin(self) -> int:
        return int(self.total * MARGIN)

    def left(self, utilization: float) -> int:
        """For the KV pool. utilization: share of the device's memory that all of us may take."""
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
    """Runs the largest prefill and the longest decode, and looks at what they took.

    The weights are there already.  graphs: that may be captured, of graph_bytes each; their
    activations have memory of their own, as much as a decode takes.
    Raises StartupError where the steps themselves don't fit.
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
    usage: MemoryUsage, *, block_bytes: int, utilization: float, wanted: int | None, useful: int
) -> int:
    """Blocks for the pool.

    block_bytes: memory of one.  utilization: share of the device's memory that may be taken.
    wanted: what the user asked for, else None.  useful: how many could ever be in use at once.
    Raises StartupError when there is no room for what was asked, or for a single block.
    """
    if wanted is not None:
        if wanted * block_bytes > usage.left(1.0):
            raise StartupError(
                f"num_kv_blocks is {wanted}, which takes {_gib(wanted * block_bytes)}; "
                f"{_gib(max(0, usage.left(1.0)))} are left: {usage}"
            )
        return wanted
    affordable = usage.left(utilization) // block_bytes
    if affordable < 1:
        raise StartupError(
            f"not enough memory on the device for the KV cache: one block takes "
            f"{_gib(block_bytes)}, and {utilization:g} of the device may be used "
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
