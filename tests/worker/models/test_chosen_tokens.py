"""Models whose index chooses the tokens that attention reads: their bits, and what they cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as with_other
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from penstock.model.config import ModelConfig
from penstock.model.kv_layout import kv_numbers
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.program import Buffer, PhaseKind
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.cpu.forward import CPUForward
from penstock_worker.forward.interface import Batch, Forward
from tests.kernels.cpu.test_arguments import changed
from tests.worker.cpu_model import CPUModel
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.test_latents_on_cpu import LENGTH, TOKENS, alone, in_chunks_and_company
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.models.test_parity_on_cpu import cpu_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CASE = "deepseek-v32"
LATENT, ROTATING, INDEX, LAYERS = 32, 16, 32, 3
SOME, MORE_THAN_A_SPLIT = 20, 300


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("chosen")
    make_theirs(*CASES[CASE]).save_pretrained(found)
    return found


def reading(folder: Path, most: int, dtype: str = "float32", backend: str = "cpu") -> CPUModel:
    """The model whose tokens read so many."""
    plain = cpu_model(folder)
    kept = {"kv_cache_dtype": "int8", "quantization": "int8", "dtype": "auto"}
    return CPUModel(
        with_most(plain.config, most),
        plain.weights,
        **(kept if dtype == "int8" else {"dtype": dtype}),
        backend=backend,
        positions=1024,
    )


def with_most(config: ModelConfig, most: int) -> ModelConfig:
    layers = []
    for layer in config.layers:
        assert layer.attention.index is not None
        index = replace(layer.attention.index, most=most)
        layers.append(replace(layer, attention=replace(layer.attention, index=index)))
    return replace(config, layers=tuple(layers))


@pytest.mark.parametrize("most", [SOME, MORE_THAN_A_SPLIT])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_rows_with_chosen_tokens_depend_on_their_sequence_alone(
    folder: Path, dtype: str, most: int
) -> None:
    model = reading(folder, most, dtype)
    one = alone(model)
    assert bool(one.isfinite().all())
    for threads in (1, 2):
        assert torch.equal(one, in_chunks_and_company(model, threads)), threads


@pytest.mark.parametrize("most", [SOME, MORE_THAN_A_SPLIT])
def test_both_backends_choose_alike(folder: Path, most: int) -> None:
    """Over more than two splits of keys, on one of them in pages that were put together."""
    ours = alone(reading(folder, most))
    slow = alone(reading(folder, most, backend="reference"))
    assert torch.allclose(ours, slow, rtol=1e-3, atol=1e-3)


def test_of_equal_scores_the_first_are_chosen(folder: Path, tmp_path: Path) -> None:
    """Of one head alone, for which every second token or so scores 0: at the end of the text those
    that score more are fewer than what is chosen, and of the others the first are chosen."""
    ours, slow = (
        alone(with_one_head(folder, tmp_path / backend, backend))
        for backend in ("cpu", "reference")
    )
    assert torch.allclose(ours, slow, rtol=1e-3, atol=1e-3)


def with_one_head(folder: Path, into: Path, backend: str) -> CPUModel:
    """All other heads of the index weigh nothing."""
    model = reading(folder, MORE_THAN_A_SPLIT, backend=backend)
    tensors = load_file(model.weights.files[0])
    weights = [name for name in tensors if name.endswith(".indexer.weights_proj.weight")]
    assert len(weights) == LAYERS
    for name in weights:
        tensors[name][1:] = 0.0
    into.mkdir()
    save_file(tensors, into / "one.safetensors")
    return with_other(model, weights=replace(model.weights, files=(str(into / "one.safetensors"),)))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_where_all_are_kept_it_is_dense_attention(
    folder: Path, tmp_path: Path, backend: str
) -> None:
    """Bit for bit. With one token less, the last row alone chooses, and leaves one out."""
    kept = alone(reading(folder, LENGTH, backend=backend))
    assert torch.equal(kept, alone(without_index(folder, tmp_path, backend)))
    less = alone(reading(folder, LENGTH - 1, backend=backend))
    assert torch.equal(less[:-1], kept[:-1])
    assert not torch.equal(less[-1], kept[-1])
    slow = alone(reading(folder, LENGTH - 1, backend="reference"))
    assert torch.allclose(less[-1], slow[-1], rtol=1e-3, atol=1e-3)


def without_index(folder: Path, into: Path, backend: str) -> CPUModel:
    model = reading(folder, LENGTH, backend=backend)
    tensors = load_file(model.weights.files[0])
    path = into / "dense.safetensors"
    save_file({name: each for name, each in tensors.items() if ".indexer." not in name}, path)
    files = replace(model.weights, files=(str(path),))
    layers = tuple(
        replace(layer, attention=replace(layer.attention, index=None))
        for layer in model.config.layers
    )
    return with_other(model, config=replace(model.config, layers=layers), weights=files)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_copy_of_blocks_has_what_choosing_tokens_needs(
    folder: Path, backend: str, dtype: str
) -> None:
    """An index's keys are swapped, stored and sent with the rest of a block."""
    if dtype == "int8" and backend == "reference":
        pytest.skip("this backend quantises no weights")
    model = reading(folder, SOME, dtype, backend)
    forward = model.forward(block_size=16, num_blocks=80, threads=1)
    first, count = np.arange(34), 500
    computed(forward, first, 0, count)
    here = computed(forward, first, count, LENGTH - count)
    other = model.forward(block_size=16, num_blocks=80, threads=1)
    moved = first[::-1] + 40
    for source, target in zip(forward.kv_blocks(), other.kv_blocks(), strict=True):
        target[moved] = source[first]
    assert torch.equal(computed(other, moved, count, LENGTH - count), here)


def computed(forward: Forward, table: np.ndarray, start: int, count: int) -> torch.Tensor:
    tokens = TOKENS[start : start + count]
    batch = Batch(tokens, [table], np.array([start]), np.array([count]))
    return in_torch(forward.logits(batch, np.arange(count)))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PhaseKind.PLACE_INDEX, {"norm": None}),
        (PhaseKind.PLACE_INDEX, {"source": Buffer.RESULT}),
        (PhaseKind.INDEX, {"target": Buffer.MIXED}),
        (PhaseKind.CHOOSE, {"kind": PhaseKind.INDEX}),
    ],
    ids=str,
)
def test_phases_of_chosen_tokens_with_wrong_buffers_are_refused(
    folder: Path, kind: PhaseKind, fields: dict[str, object]
) -> None:
    """No norm; buffers that are too narrow; attention to tokens that nothing has chosen."""
    forward = reading(folder, SOME).forward(block_size=16, num_blocks=1, threads=1)
    assert isinstance(forward, CPUForward)
    spoilt = changed(forward.decoder.program, kind, **fields)
    with pytest.raises(ValueError, match=r"phase \d+ \(.*\) doesn't fit what comes before it"):
        Decoder(spoilt, 16, 1, cache="float32", threads=1)


def test_what_a_token_takes() -> None:
    config = read(CASE)
    shape = CacheShape.of(config, 16, torch.bfloat16)
    of_layer = LATENT + ROTATING + INDEX
    assert ReferenceAttention.block_bytes(shape) == LAYERS * 16 * 2 * of_layer
    views = ReferenceAttention(shape, 5).kv_blocks()
    assert sum(view[0].nbytes for view in views) == LAYERS * 16 * 2 * of_layer
    assert kv_numbers(config, LATENT + ROTATING) == of_layer + LATENT
