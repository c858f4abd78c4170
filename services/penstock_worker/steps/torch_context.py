"""What steps need of torch where something computes with it, and leave out where nothing does: the
CPU kernels serve without torch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from penstock_worker.machine.torch_import import torch_runs


def without_gradients() -> AbstractContextManager[object]:
    """Returns the context in which torch, where it runs, keeps nothing for gradients. Threads
    don't inherit it."""
    return torch.inference_mode() if torch_runs() else nullcontext()


def lacks_device_memory() -> tuple[type[Exception], ...]:
    """Returns what is raised where a device has no memory left."""
    return (torch.OutOfMemoryError,) if torch_runs() else ()
