"""Without CUDA the kernels run in Triton's interpreter, on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.interpreted_triton import DEVICE

from penstock_kernels.triton import shared_memory  # isort: skip  # After what interprets it.
from penstock_worker.loading.device import ProfileRun
from penstock_worker.sampler.device import DeviceSampler


@pytest.fixture
def pretend_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[str, tuple[int, int]], None]]:
    """Given a name and a compute capability: such a GPU is there, as far as torch tells of it
    before anything is computed."""

    def pretend(name: str, capability: tuple[int, int]) -> None:
        for function, value in {
            "is_available": True,
            "device_count": 1,
            "get_device_capability": capability,
            "get_device_name": name,
        }.items():
            monkeypatch.setattr(torch.cuda, function, lambda *_, value=value: value)
        monkeypatch.setattr(shared_memory, "program_bytes", lambda _: shared_memory.HOPPER.size)
        shared_memory.shared_memory.cache_clear()

    yield pretend
    shared_memory.shared_memory.cache_clear()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return DEVICE


@pytest.fixture
def unwarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted, it takes long."""
    monkeypatch.setattr(DeviceSampler, "warm_up", lambda *_: None)
    monkeypatch.setattr(ProfileRun, "sample", lambda *_: None)
