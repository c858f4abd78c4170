"""Weights that go to a device in chunks, and weights that nobody has trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.model.prepared_model import WeightFiles
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.stored import StoredTensor
from tests.interpreted_triton import DEVICE
from tests.worker.checkpoints import tiny_files, tiny_tensors
from tests.worker.cuda.small_models import GROUPED, NORMED

NO_FILES = WeightFiles(format="safetensors", files=("/nowhere",), dtype="bfloat16")
HEAD, SHAPE = "lm_head.weight", (97, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tensors_on_the_device_are_the_files(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = open_weights(tiny_files(tmp_path, GROUPED), GROUPED, dtype, device=DEVICE)
    head = weights.take(HEAD, SHAPE)
    assert (head.device.type, head.dtype) == (DEVICE.type, dtype)
    assert torch.equal(head.cpu(), tiny_tensors(GROUPED)[HEAD].to(dtype))


def test_chunks_are_placed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_worker.weights.stored.CHUNK_ELEMENTS", 7)
    values = torch.randn(20, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    sizes = []

    def place(target: Tensor, chunk: Tensor) -> None:
        sizes.append((len(chunk), chunk.dtype))
        target.copy_(chunk)

    out = torch.empty(4, 5)
    stored = StoredTensor("x", (4, 5), "BF16", values.view(torch.uint8).numpy())
    stored.read_into(out, place)
    assert torch.equal(out.flatten(), values.float())
    assert sizes == [(size, torch.bfloat16) for size in (7, 7, 6)]


def dummy(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    weights = open_weights(NO_FILES, GROUPED, dtype, device=DEVICE, load_format="dummy")
    return weights.take(name, SHAPE)


def test_dummy_weights_follow_from_their_names() -> None:
    assert torch.equal(dummy(HEAD), dummy(HEAD))
    assert not torch.equal(dummy(HEAD), dummy("embed_tokens.weight"))
    assert dummy(HEAD, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("config", [GROUPED, NORMED], ids=["grouped", "normed"])
def test_a_dummy_model_gives_sane_logits(config: object) -> None:
    from tests.worker.driver import Driver, Job, LogitsOf, make_runner

    weights = open_weights(NO_FILES, config, torch.float32, load_format="dummy")
    model = DecoderModel(config, weights, 64)
    logits = LogitsOf()
    runner = make_runner(model, observer=logits, slots=1)
    (job,) = Driver(runner, slots=1).run([Job([1, 2, 3, 4], 4)])
    assert job.error is None
    assert 0.3 < logits.of(0).std() < 3


def test_unknown_format() -> None:
    with pytest.raises(StartupError, match="'pickle'; allowed are auto, dummy"):
        open_weights(NO_FILES, GROUPED, torch.float32, load_format="pickle")
