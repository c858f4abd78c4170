"""Files of random weights are models that Penstock reads, with the sizes that they claim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.peers.random_gguf import SHAPES, write
from loadtest.peers.servers import default_model
from loadtest.roofline.cost import model_cost
from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock.prepare.gguf_config import read_config
from testing.quick_gguf import read_once

LAYERS = 6


@pytest.fixture(scope="module", autouse=True)
def vocabulary_read_once() -> Iterator[None]:
    with read_once():
        yield


def written(path: Path, name: str) -> ModelConfig:
    write(path, replace(SHAPES[name], layers=LAYERS, hidden=64), default_model())
    config = read_config(GGUFFile(path))
    assert isinstance(config, ModelConfig)
    return config


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    path = tmp_path / "moe.gguf"
    config = written(path, "moe")
    experts = config.layer(0).feed_forward.experts
    assert experts is not None
    assert (experts.count, experts.active, experts.inner) == (32, 8, 256)
    attention = 64 * (8 + 2 + 2 + 8) * 64
    router = 32 * 64
    cost = model_cost(path)
    assert (cost.expert_share, cost.expert_bytes % 32) == (8 / 32, 0)
    assert cost.read_bytes(1) == cost.weight_bytes
    assert cost.read_bytes(10_000) == cost.weight_bytes + cost.expert_bytes * 24 // 32
    # A token has 8 of the 32 experts.
    assert cost.layer_macs == LAYERS * (attention + router + 8 * 3 * 256 * 64)


def test_a_dense_model(tmp_path: Path) -> None:
    path = tmp_path / "dense.gguf"
    config = written(path, "dense")
    assert config.layer(0).feed_forward.experts is None
    attention = 64 * (16 + 8 + 8 + 16) * 128
    assert model_cost(path).layer_macs == LAYERS * (attention + 3 * 6144 * 64)


def test_a_window(tmp_path: Path) -> None:
    path = tmp_path / "window.gguf"
    config = written(path, "window")
    windows = [config.layer(number).attention.window for number in range(LAYERS)]
    assert windows == [512] * 5 + [None]
    cost = model_cost(path)
    assert (cost.window, cost.kv_bytes, cost.window_kv_bytes) == (512, 1024, 5 * 1024)


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_is_left_of_a_file_that_failed(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(FileNotFoundError):
        write(path, SHAPES[name], tmp_path / "absent.gguf")
    assert not path.exists()
