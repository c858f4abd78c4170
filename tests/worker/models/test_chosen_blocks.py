"""Models whose index chooses the blocks of positions that attention reads: their bits, and what
they cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as with_other
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import kv_numbers
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.program import Buffer, PhaseKind
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.forward.cpu.forward import CPUForward
from tests.kernels.cpu.test_arguments import changed
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.parity import compare
from tests.worker.models.test_chosen_tokens import computed
from tests.worker.models.test_latents_on_cpu import LENGTH, alone, in_chunks_and_company
from tests.worker.models.test_parity_families import make_theirs, random_prompts
from tests.worker.models.test_parity_on_cpu import cpu_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CASE = "minimax-m3"
BLOCK, KV_HEADS, HEAD, INDEX, LAYERS = 16, 2, 16, 32, 3
ALL = -(-LENGTH // BLOCK)
FEW, MORE_THAN_A_SPLIT, OF_RELEASES = (BLOCK, 3, 1), (BLOCK, 20, 2), (128, 3, 1)
"""Positions of a block, blocks that are read, and those of them at the token itself."""


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_the_decoder_of_a_checkpoint_that_sees(tmp_path: Path) -> None:
    """Its tensors have the releases' names. What sees is read apart from it."""
    import transformers

    torch.manual_seed(3)
    sees = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
    }
    config = transformers.MiniMaxM3VLConfig(
        text_config=SIZES | CASES[CASE][1],
        vision_config=sees,
        image_token_index=5,
        video_token_index=6,
        projector_hidden_size=16,
    )
    theirs = transformers.MiniMaxM3SparseForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    model = cpu_model(tmp_path)
    assert model.config.vision is not None
    prompts = [[token for token in prompt if token not in (5, 6)] for prompt in random_prompts()]
    assert compare(model, theirs, prompts[4::2], 16) > 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("blocks")
    make_theirs(*CASES[CASE]).save_pretrained(found)
    return found


def reading(
    folder: Path, blocks: tuple[int, int, int], dtype: str = "float32", backend: str = "cpu"
) -> CPUModel:
    """The model whose tokens read such blocks."""
    plain = cpu_model(folder)
    model = with_other(
        plain,
        config=with_blocks(plain.config, *blocks),
        dtype="auto" if dtype == "int8" else dtype,
        backend=backend,
        positions=1024,
    )
    if dtype != "int8":
        return model
    return with_other(model, kv_cache_dtype="int8", quantization="int8")


def with_blocks(config: ModelConfig, block: int, most: int, local: int) -> ModelConfig:
    layers = []
    for layer in config.layers:
        index = layer.attention.blocks
        if index is not None:
            index = replace(index, block=block, most=most, local=local)
        layers.append(replace(layer, attention=replace(layer.attention, blocks=index)))
    return replace(config, layers=tuple(layers))


@pytest.mark.parametrize("blocks", [FEW, MORE_THAN_A_SPLIT, OF_RELEASES], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_rows_with_chosen_blocks_depend_on_their_sequence_alone(
    folder: Path, dtype: str, blocks: tuple[int, int, int]
) -> None:
    model = reading(folder, blocks, dtype)
    one = alone(model)
    assert bool(one.isfinite().all())
    for threads in (1, 2):
        assert torch.equal(one, in_chunks_and_company(model, threads)), threads


def test_rows_depend_on_their_sequence_alone_on_the_reference(folder: Path) -> None:
    model = reading(folder, FEW, backend="reference")
    assert torch.equal(alone(model), in_chunks_and_company(model, 1))


@pytest.mark.parametrize("blocks", [FEW, MORE_THAN_A_SPLIT, OF_RELEASES], ids=str)
def test_both_backends_choose_alike(folder: Path, blocks: tuple[int, int, int]) -> None:
    """Over more than two splits of keys."""
    ours = alone(reading(folder, blocks))
    slow = alone(reading(folder, blocks, backend="reference"))
    assert torch.allclose(ours, slow, rtol=1e-3, atol=1e-3)


def test_of_equal_scores_both_backends_choose_the_first(folder: Path, tmp_path: Path) -> None:
    """No token has a key in the index: its own block is read, and the first ones."""
    tensors = load_file(folder / "model.safetensors")
    for name, each in tensors.items():
        if name.endswith("indexer.k_proj.weight"):
            each.zero_()
    path = tmp_path / "alike.safetensors"
    save_file(tensors, path)
    ours, slow = (
        alone(with_other(model, weights=replace(model.weights, files=(str(path),))))
        for model in (reading(folder, FEW), reading(folder, FEW, backend="reference"))
    )
    assert torch.allclose(ours, slow, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(ours, alone(reading(folder, FEW)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_where_all_are_kept_it_is_dense_attention(
    folder: Path, tmp_path: Path, backend: str
) -> None:
    """Bit for bit. With one block less, the rows of the last one alone choose, and leave one
    out."""
    kept = alone(reading(folder, (BLOCK, ALL, 1), backend=backend))
    assert torch.equal(kept, alone(without_index(folder, tmp_path, backend)))
    less, begin = alone(reading(folder, (BLOCK, ALL - 1, 1), backend=backend)), BLOCK * (ALL - 1)
    assert torch.equal(less[:begin], kept[:begin])
    assert all(not torch.equal(*rows) for rows in zip(less[begin:], kept[begin:], strict=True))


def without_index(folder: Path, into: Path, backend: str) -> CPUModel:
    model = reading(folder, FEW, backend=backend)
    tensors = load_file(model.weights.files[0])
    path = into / "dense.safetensors"
    save_file({name: each for name, each in tensors.items() if ".indexer." not in name}, path)
    layers = tuple(
        replace(layer, attention=replace(layer.attention, blocks=None))
        for layer in model.config.layers
    )
    return with_other(
        model,
        config=replace(model.config, layers=layers),
        weights=replace(model.weights, files=(str(path),)),
    )


@pytest.mark.parametrize(
    ("backend", "dtype"), [("cpu", "float32"), ("cpu", "int8"), ("reference", "float32")]
)
def test_a_copy_of_blocks_has_what_choosing_blocks_needs(
    folder: Path, backend: str, dtype: str
) -> None:
    """An index's keys are swapped, stored and sent with the rest of a block."""
    model = reading(folder, FEW, dtype, backend)
    forward = model.forward(block_size=16, num_blocks=80, threads=1)
    first, count = np.arange(34), 500
    computed(forward, first, 0, count)
    here = computed(forward, first, count, LENGTH - count)
    other = model.forward(block_size=16, num_blocks=80, threads=1)
    moved = first[::-1] + 40
    for source, target in zip(forward.kv_blocks(), other.kv_blocks(), strict=True):
        target[moved] = source[first]
    assert torch.equal(computed(other, moved, count, LENGTH - count), here)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PhaseKind.PLACE_INDEX, {"norm": None}),
        (PhaseKind.PLACE_INDEX, {"other_norm": None}),
        (PhaseKind.PLACE_INDEX, {"source": Buffer.RESULT}),
        (PhaseKind.INDEX, {"target": Buffer.SCORES}),
        (PhaseKind.CHOOSE, {"kind": PhaseKind.INDEX}),
    ],
    ids=str,
)
def test_phases_of_chosen_blocks_with_wrong_buffers_are_refused(
    folder: Path, kind: PhaseKind, fields: dict[str, object]
) -> None:
    """No norm; buffers that are too narrow; attention to blocks that nothing has chosen."""
    forward = reading(folder, FEW).forward(block_size=16, num_blocks=1, threads=1)
    assert isinstance(forward, CPUForward)
    spoilt = changed(forward.decoder.program, kind, **fields)
    with pytest.raises(ValueError, match=r"phase \d+ \(.*\) doesn't fit what comes before it"):
        Decoder(spoilt, 16, 1, cache="float32", threads=1)


def test_blocks_that_the_kernels_cannot_read(folder: Path) -> None:
    with pytest.raises(StartupError, match="blocks have 24 positions; 16, 32, 64, 128, 256 are"):
        reading(folder, (24, 3, 1)).recipe()
    slow = alone(reading(folder, (24, 3, 1), backend="reference"))
    assert bool(slow.isfinite().all())


def test_what_a_token_takes() -> None:
    config = read(CASE)
    shape = CacheShape.of(config, 16, torch.bfloat16)
    of_layer = 2 * KV_HEADS * HEAD + INDEX
    assert ReferenceAttention.block_bytes(shape) == LAYERS * 16 * 2 * of_layer
    views = ReferenceAttention(shape, 5).kv_blocks()
    assert sum(view[0].nbytes for view in views) == LAYERS * 16 * 2 * of_layer
    assert kv_numbers(config, KV_HEADS * HEAD) == of_layer
