"""The choice of the device that computes."""

from __future__ import annotations

import torch

from penstock.errors import StartupError
from penstock.protocol.to_worker import Setup
from penstock_worker.machine.gpu_driver import has_driver
from penstock_worker.machine.torch_import import torch_runs


def computes_on_gpu(setup: Setup) -> bool:
    """Returns whether there is a GPU and the setup doesn't ask for the CPU. Only where a driver is,
    torch is asked. Raises StartupError if a GPU is asked for and there is none."""
    if setup.device not in ("auto", "cpu", "cuda"):
        raise StartupError(f"device is {setup.device!r}; allowed are auto, cpu, cuda")
    if setup.device == "cpu":
        return False
    asks_torch = has_driver() or setup.device == "cuda" or torch_runs()
    return asks_torch and compute_device(setup).type == "cuda"


def compute_device(setup: Setup) -> torch.device:
    """Returns a GPU if there is one and the setup doesn't ask for the CPU. Ranks of a group are
    assigned to the GPUs of their machine round-robin. Raises StartupError if a GPU is asked for and
    there is none."""
    if setup.device == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        rank = 0 if setup.group is None else setup.group.rank
        return torch.device("cuda", rank % torch.cuda.device_count())
    if setup.device == "cuda":
        built = torch.version.cuda or "no CUDA"
        raise StartupError(
            f"device is 'cuda', but torch {torch.__version__} (built for {built}) finds no GPU"
        )
    return torch.device("cpu")


def device_name(device: torch.device) -> str:
    """Returns the name that people read, such as `cuda: NVIDIA H200`."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return device.type


def capability(device: torch.device) -> str:
    """Returns the architecture that kernels are compiled for, such as `sm_90`."""
    if device.type == "cuda":
        return "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    return "interpreted"
