"""Vectors of texts and of pictures in one space: against transformers, and nobody's company."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.media.prepared import write
from penstock.model.config import SharedSpace
from penstock.prepare import load_manifest
from penstock.protocol.common import Pooling, TokenSampling
from penstock.protocol.from_worker import MediaReady
from penstock.protocol.media import Media, MediaItem, MediaSpan
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.loading.loaded import Loaded
from penstock_worker.pooling.space import SpaceBody, SpaceParts
from testing.pooling_models import load_pooling
from tests.worker.pooling.space_models import SpaceModel, write_clip, write_siglip
from tests.worker.vision.picture_runners import answered, message_of

KINDS = ("clip", "old clip", "siglip")
RAW = Pooling("embed", normalize=False)
Input = list[int] | Image.Image


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SpaceModel:
    folder = tmp_path_factory.mktemp("space") / "m"
    if request.param == "siglip":
        return write_siglip(folder)
    return write_clip(folder, old=request.param == "old clip")


@pytest.fixture(scope="module", params=["cpu", "reference"])
def loaded(
    request: pytest.FixtureRequest, model: SpaceModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loaded]:
    cache = tmp_path_factory.mktemp("cache")
    worker = {"attention_backend": request.param}
    found = load_pooling(str(model.folder), cache, worker=worker, threads=2)
    yield found
    found.runner.close()


def drawn(seed: int, width: int = 40, height: int = 31) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def vectors(loaded: Loaded, folder: Path, inputs: list[Input]) -> list[np.ndarray]:
    """In one step."""
    runner = loaded.runner
    runner.reset()
    preparation = load_manifest(loaded.setup.model_dir).media
    admitted, work, names = [], [], []
    for slot, given in enumerate(inputs):
        media, tokens = None, given
        if isinstance(given, Image.Image):
            assert preparation is not None
            image: Any = preparation.kinds["image"].preparation
            content = write(image.prepare(given))
            digest = hashlib.sha256(content).hexdigest()
            item = MediaItem(digest, "image", 1, len(content), digest, ())
            path = folder / digest
            path.write_bytes(content)
            assert isinstance(answered(runner, message_of(item, str(path))), MediaReady)
            names.append(digest)
            media, tokens = Media((item,), (MediaSpan(0, 0, 1, 0),)), [0]
        assert isinstance(tokens, list)
        admitted.append(
            NewSequence(
                slot, tokens, len(tokens), 0, TokenSampling(0), [slot], None, RAW, media=media
            )
        )
        work.append(SlotWork(slot, 0, len(tokens)))
    result = runner.execute(Plan(1, 0, [], admitted, work, encode=list(dict.fromkeys(names))))
    found = []
    for outcome in result.slots:
        assert outcome.error is None, outcome.error
        assert outcome.vectors is not None
        found.append(np.frombuffer(outcome.vectors.data, "<f4"))
    return found


def texts(model: SpaceModel) -> list[list[int]]:
    words = ("w5 w9", "w7", "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11", "w44 w43 w42 w41 w44")
    return [model.ids(text) for text in words]


def test_vectors_equal_transformers(model: SpaceModel, loaded: Loaded, tmp_path: Path) -> None:
    pictures = [drawn(1), drawn(2, 28, 28), drawn(3, 20, 90)]
    given = texts(model)
    found = vectors(loaded, tmp_path, [*given, *pictures])
    wanted = [model.of_ids(each) for each in given] + [model.of_picture(each) for each in pictures]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 2e-4 * max(1, np.abs(theirs).max())


def test_bits_are_an_inputs_own(model: SpaceModel, loaded: Loaded, tmp_path: Path) -> None:
    inputs: list[Input] = [*texts(model), drawn(1), drawn(4, 60, 50), drawn(1)]
    together = vectors(loaded, tmp_path, inputs)
    for number, each in enumerate(inputs):
        (alone,) = vectors(loaded, tmp_path, [each])
        assert alone.tobytes() == together[number].tobytes()


class Numbered:
    """Encoder layers whose row of a token is its id. All threads leave them at once."""

    device = torch.device("cpu")
    layers_done = 0

    def __init__(self, threads: int) -> None:
        self._together = threading.Barrier(threads)

    def rows(self, works: list[SlotWork], slots: dict[int, Any]) -> torch.Tensor:
        self._together.wait(60)
        ids = [token for work in works for token in slots[work.slot].token_ids]
        return torch.tensor(ids, dtype=torch.float32)[:, None]


def test_threads_keep_their_inputs_apart() -> None:
    """Shares of a step are computed at once on a CPU."""
    threads, each = 4, 40
    space = SharedSpace(size=1, vision=None)
    body = SpaceBody(
        Numbered(threads),  # type: ignore[arg-type]
        SpaceParts(lambda vectors: vectors, space, media=None),  # type: ignore[arg-type]
    )
    slots = {
        slot: SimpleNamespace(media=None, token_ids=[7] * (slot % 5) + [slot])
        for slot in range(threads * each)
    }

    def share(number: int) -> list[list[int]]:
        own = range(number * each, (number + 1) * each)
        works = [SlotWork(slot, 0, len(slots[slot].token_ids)) for slot in own]
        found = (body.hidden(works, slots).vectors for _ in range(200))  # type: ignore[arg-type]
        return [vectors[:, 0].int().tolist() for vectors in found]

    with ThreadPoolExecutor(threads) as pool:
        for number, found in enumerate(pool.map(share, range(threads))):
            assert found == [[*range(number * each, (number + 1) * each)]] * 200
