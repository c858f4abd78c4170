"""Families of models by the CUDA kernels, against the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.gguf_config import read_config as read_gguf_config
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.device.memory import memory_of
from penstock_worker.forward.buckets import Buckets
from penstock_worker.forward.captures import captures_of
from penstock_worker.forward.queued import TritonForward
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.forward.triton_limits import attention_of
from penstock_worker.layers.parts import DecoderOps
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.weights import Weights
from tests.worker.cuda.small_models import BLOCK, DEVICE, batch, prompt
from tests.worker.models import test_gguf_families
from tests.worker.models.family_cases import BITS_ON_DEVICE, CASES, ON_DEVICE, read
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.models.test_twins import read as read_twin
from tests.worker.random_weights import RandomWeights

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

BLOCKS, POSITIONS = 128 // BLOCK, 128
HOST = torch.device("cpu")
SHORT = (22, 24, 3)
"""Tokens of a prompt's first chunk, of all of it, and of the other prompt. Most windows are of
21."""
LENGTHS = dict.fromkeys(("gemma2", "gemma3-stretched", "olmo3", "granite-biases"), (40, 50, 30))


def model(
    config: ModelConfig, device: torch.device, ops: DecoderOps, files: WeightFiles | None = None
) -> DecoderModel:
    weights: Weights = RandomWeights(torch.float32, device)
    if files is not None:
        weights = open_weights(files, config, torch.float32, device=device)
    return DecoderModel(config, weights, POSITIONS, ops)


def on_device(
    config: ModelConfig, files: WeightFiles | None = None, *, batch_invariant: bool = False
) -> TritonForward:
    """batch_invariant: of the attention; products are so in any case."""
    shape = CacheShape.of(config, BLOCK, torch.float32)
    choices = attention_of(config, (torch.float32,), batch_invariant=batch_invariant)
    attention = TritonAttention(shape, BLOCKS, DEVICE, choices)
    own = model(config, DEVICE, TritonOps(DEVICE, torch.float32, batch_invariant=True), files)
    return TritonForward(own, attention, DEVICE, slots=2, memory=memory_of(DEVICE))


def on_host(config: ModelConfig, files: WeightFiles | None = None) -> ReferenceForward:
    shape = CacheShape.of(config, BLOCK, torch.float32)
    own = model(config, HOST, REFERENCE, files)
    return ReferenceForward(own, ReferenceAttention(shape, BLOCKS))


@pytest.mark.parametrize("case", ON_DEVICE)
def test_logits_are_the_references(case: str) -> None:
    """A prompt in two chunks, beside another one, and a decode of both."""
    compare(read(case), None, LENGTHS.get(case, SHORT))


@pytest.mark.parametrize("case", test_gguf_families.ON_DEVICE)
def test_a_gguf_files_logits_are_the_references(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*(test_gguf_families.OWN.get(case) or CASES[case]))
    path = tmp_path / "model.gguf"
    test_gguf_families.write(path, theirs, test_gguf_families.CONVERSIONS[case])
    files = WeightFiles(format="gguf", files=(str(path),), dtype="F32")
    compare(read_gguf_config(GGUFFile(path)), files, SHORT)


def compare(config: ModelConfig, files: WeightFiles | None, lengths: tuple[int, int, int]) -> None:
    """files: None: weights of no file. lengths: see SHORT."""
    chunk, length, second = lengths
    mine, other = prompt(config, length, 1), prompt(config, second, 2)
    table, beside = list(range(0, BLOCKS, 2)), list(range(1, BLOCKS, 2))
    steps = [
        batch((mine[:chunk], table, 0), (other, beside, 0)),
        batch((mine[chunk:], table, chunk), ([7], beside, second)),
        batch(([9], table, length), ([8], beside, second + 1)),
    ]
    with torch.inference_mode():
        ours, wanted = on_device(config, files), on_host(config, files)
        for step in steps:
            rows = np.arange(len(step.tokens))
            found, true = ours.logits(step, rows).cpu(), wanted.logits(step, rows)
            assert (found - true).abs().max() < 1e-4 * true.abs().max()


def test_layers_that_are_computed_several_times() -> None:
    compare(read_twin("nanbeige"), None, SHORT)


@pytest.mark.parametrize("case", BITS_ON_DEVICE)
def test_bits_are_a_sequences_own(case: str) -> None:
    """Alone in one chunk; by recorded graphs in chunks beside another sequence, and in a decode."""
    config = read(case)
    mine, other = prompt(config, 9, 3), prompt(config, 4, 4)
    table, beside = [3, 1, 5], [0, 2]
    with torch.inference_mode():
        alone = on_device(config, batch_invariant=True)
        wanted = alone.logits(batch((mine, table, 0)), np.arange(9))
        disturbed = on_device(config, batch_invariant=True)
        buckets = Buckets(2, POSITIONS, BLOCK, mixed_rows=(7, 16))
        disturbed.use_graphs(buckets, captures_of(DEVICE), torch.float32)
        steps = [
            batch((other[:3], beside, 0), (mine[:5], table, 0)),
            batch((mine[5:8], table, 5), (other[3:], beside, 3)),
            batch(([6], beside, 4), (mine[8:], table, 8)),
        ]
        rows = (range(3, 8), range(3), range(1, 2))
        found = [
            disturbed.logits(step, np.array(own)) for step, own in zip(steps, rows, strict=True)
        ]
    assert wanted.std() > 0
    assert torch.equal(torch.cat(found), wanted)


def test_a_latent_is_stored_once() -> None:
    config = read("deepseek-v2-lite")
    shape = CacheShape.of(config, BLOCK, torch.float32)
    size = TritonAttention.block_bytes(shape)
    assert size == config.num_layers * BLOCK * (48 + 16) * 4
    attention = TritonAttention(
        shape, 3, DEVICE, attention_of(config, (torch.float32,), batch_invariant=False)
    )
    assert attention.blocks()[:, 0].numel() == size
