"""What the card computes while the host computes experts, and that neither reads what the other
hasn't written: on a simulated GPU, which does its work as late as CUDA allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock_kernels.cpu import library
from penstock_worker.layers.feed_forward import MixtureOfExperts
from penstock_worker.layers.parts import ExpertsAtOnce
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.tensors import CPU, CUDA
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.test_cpu_experts import MIXTURES, of, placed, with_experts, written
from tests.worker.cuda.test_streamed_experts import copying_from, routed

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

GIB = 1 << 30


@pytest.fixture(autouse=True)
def same_instructions() -> Iterator[None]:
    """Loading chooses them for its process."""
    before = library.instruction_set()
    yield
    library.use(before)


class Told(ExpertsAtOnce):
    """LayerExperts that say when they are asked."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def begin(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Callable[[], Tensor]:
        self.heard.append("begin")

        def finish() -> Tensor:
            self.heard.append("finish")
            return 2 * hidden

        return finish


def mixture_of(told: Told, shared: Callable[[Tensor], Tensor]) -> MixtureOfExperts:
    own: Any = shared
    return MixtureOfExperts(told, own, None)


def test_shared_experts_are_computed_while_the_host_computes() -> None:
    told = Told()

    def shared(hidden: Tensor) -> Tensor:
        told.heard.append("shared")
        return hidden

    assert torch.equal(mixture_of(told, shared)(torch.ones(2, 3)), torch.full((2, 3), 3.0))
    assert told.heard == ["begin", "shared", "finish"]


def test_the_host_has_what_it_reads_until_it_is_done() -> None:
    """Also where the card has run out of memory meanwhile."""
    told = Told()

    def shared(hidden: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        mixture_of(told, shared)(torch.ones(2, 3))
    assert told.heard == ["begin", "finish"]


@pytest.mark.parametrize("threshold", [3, 1_000_000])
@pytest.mark.parametrize("pace", [None, 1])
def test_a_card_that_is_late_computes_the_same(
    pace: int | None, threshold: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers, one behind the other, over more rows than go down at a time."""
    monkeypatch.setattr("penstock_worker.layers.host_experts.MOST_ROWS", 8)
    monkeypatch.setattr("penstock_worker.layers.streamed_experts.BUFFER_BYTES", 1)
    model = written(tmp_path / "model.gguf", "glm45", *MIXTURES["glm45"])
    numbers = with_experts(model.config)[:2]
    random = torch.Generator().manual_seed(3)
    rows = torch.randn(20, model.config.hidden_size, generator=random).bfloat16()

    def computed(device: torch.device) -> Tensor:
        forward = of(model, "all")
        hidden = torch.empty(rows.shape, dtype=rows.dtype, device=device).copy_(rows)
        with torch.inference_mode():
            for number in numbers:
                own = routed(forward, number)
                own.experts = copying_from(placed(forward, number), threshold)
                hidden = hidden + forward._model.layers[number].feed_forward(hidden)
            return hidden.cpu()

    wanted = computed(CPU)
    with simulated(Device(GIB, pace=pace)):
        found = computed(CUDA)
    assert wanted.isfinite().all()
    assert torch.equal(found, wanted)
