"""Vectors of texts and of pictures in one space over Triton's kernels: against transformers, and
nobody's company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.protocol.common import TokenSampling
from penstock.protocol.media import Media, MediaItem, MediaSpan
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.pooling.space import MIXED
from testing.pooling_models import load_pooling
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import COLLECTING
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.test_pooling_on_device import EMBED, on_device
from tests.worker.pooling.space_models import SpaceModel, write_clip, write_siglip
from tests.worker.pooling.test_shared_space import Input, drawn, texts, vectors

pytestmark = pytest.mark.timeout(240)

WRITE: dict[str, Callable[..., SpaceModel]] = {"clip": write_clip, "siglip": write_siglip}
TOWERS = ("Tower", "MediaEncodings._keep")
"""Who waits while a picture is encoded."""
SMALL = {"budget": 48, "sequences": 4}


def inputs_of(model: SpaceModel) -> list[Input]:
    """Texts and pictures by turns."""
    first, second, *_ = texts(model)
    return [drawn(1), first, drawn(2, 20, 60), second]


def of_transformers(model: SpaceModel, given: Input) -> np.ndarray:
    return model.of_ids(given) if isinstance(given, list) else model.of_picture(given)


def check_close(model: SpaceModel, inputs: list[Input], found: list[np.ndarray]) -> None:
    for given, ours in zip(inputs, found, strict=True):
        theirs = of_transformers(model, given)
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 2e-4 * max(1, np.abs(theirs).max())


@pytest.mark.parametrize("kind", WRITE)
def test_vectors_equal_transformers_and_are_their_own(kind: str, tmp_path: Path) -> None:
    model = WRITE[kind](tmp_path / "m", layers=2)
    loaded = on_device(str(model.folder), tmp_path, invariant=True, **SMALL)
    inputs = inputs_of(model)
    together = vectors(loaded, tmp_path, inputs)
    check_close(model, inputs, together)
    backwards = vectors(loaded, tmp_path, inputs[::-1])[::-1]
    for given, one, other in zip(inputs, together, backwards, strict=True):
        (alone,) = vectors(loaded, tmp_path, [given])
        assert alone.tobytes() == one.tobytes() == other.tobytes()
    loaded.runner.close()


def test_a_picture_that_fails_fails_alone(tmp_path: Path) -> None:
    """One whose row isn't there, and one with text around it, beside a text."""
    model = write_clip(tmp_path / "m", layers=1)
    loaded = on_device(str(model.folder), tmp_path, invariant=True, **SMALL)
    text = texts(model)[0]
    (wanted,) = vectors(loaded, tmp_path, [text])
    loaded.runner.reset()
    item = MediaItem("missing", "image", 1, 4, "missing", ())
    media = [Media((item,), (MediaSpan(0, place, 1, 0),)) for place in (0, 1)]
    given = [([0], media[0]), ([3, 0, 4], media[1]), (text, None)]
    admitted = [
        NewSequence(slot, ids, len(ids), 0, TokenSampling(0), [slot], None, EMBED, media=shown)
        for slot, (ids, shown) in enumerate(given)
    ]
    work = [SlotWork(slot, 0, len(ids)) for slot, (ids, _) in enumerate(given)]
    missing, mixed, found = loaded.runner.execute(Plan(1, 0, [], admitted, work)).slots
    assert "could not be encoded" in str(missing.error)
    assert MIXED in str(mixed.error)
    assert found.vectors is not None
    assert found.vectors.data == wanted.tobytes()
    loaded.runner.close()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_computes_late(tmp_path: Path) -> None:
    """Tower, rows and texts are on it. The host waits for a picture's row when it is encoded, and
    for the step's vectors, and for nothing else."""
    model = write_clip(tmp_path / "m", layers=1)
    worker = {"attention_backend": "triton", "device": "cuda"}
    with simulated(Device(1 << 30, pace=2)) as device:
        loaded = load_pooling(str(model.folder), tmp_path, worker=worker, **SMALL)
        waits = len(device.waits)
        inputs = inputs_of(model)
        found = vectors(loaded, tmp_path, inputs)
        waited = device.waits[waits:]
        loaded.runner.close()
    check_close(model, inputs, found)
    assert "_CUDAFetched.arrays" in waited
    assert {each for each in waited if not each.startswith(TOWERS)} <= COLLECTING
