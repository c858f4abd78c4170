"""GGUF models on the CUDA kernels, their matrices as the file has them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import PreparedModel, WeightFiles
from penstock_kernels.triton.linear.gguf_rows import gguf_rows
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_worker.dtype import stays_quantised
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.shard import shard_of
from penstock_worker.quantisation.gguf.matrix import GGUFMatrix
from penstock_worker.weights.gguf_files import gguf_tensors
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.quantised import QuantisedWeights
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Matrix, Stacked
from tests.worker.cpu_model import CPUModel
from tests.worker.weights.test_weights import stored_bytes

pytestmark = pytest.mark.timeout(240)

SMALL = {
    "num_layers": 2,
    "vocab_size": 130,
    "num_heads": 3,
    "num_kv_heads": 1,
    "intermediate_size": 96,
}
"""A part of the default model; for all of it the interpreter would take minutes."""


@pytest.fixture
def cut(default_model: PreparedModel, monkeypatch: pytest.MonkeyPatch) -> PreparedModel:
    """The default model's first layers, heads, inner columns and tokens."""
    config = msgspec.structs.replace(default_model.config, **SMALL)
    dim, inner = config.head_dim, config.intermediate_size
    rows = {
        "q_proj": config.num_heads * dim,
        "k_proj": dim,
        "v_proj": dim,
        "gate_proj": inner,
        "up_proj": inner,
        "embed_tokens": config.vocab_size,
    }
    columns = {"o_proj": config.num_heads * dim, "down_proj": inner}

    def tensors(files: tuple[str, ...], given: ModelConfig) -> dict[str, StoredTensor]:
        first = ("layers.0.", "layers.1.", "embed_tokens.", "norm.")
        found = gguf_tensors(files, given).items()
        return {
            name: part_of(tensor, rows.get(name.split(".")[-2]), columns.get(name.split(".")[-2]))
            for name, tensor in found
            if name.startswith(first)
        }

    monkeypatch.setattr("penstock_worker.weights.opening.gguf_tensors", tensors)
    return msgspec.structs.replace(default_model, config=config)


def part_of(tensor: StoredTensor, rows: int | None, columns: int | None) -> StoredTensor:
    """The first rows and columns: a matrix's bytes go row by row, in blocks of 32."""
    if len(tensor.shape) == 1:
        return tensor
    shape = rows or tensor.shape[0], columns or tensor.shape[1]
    by_row = tensor.data.reshape(tensor.shape[0], -1)
    data = by_row[: shape[0], : by_row.shape[1] * shape[1] // tensor.shape[1]].reshape(-1)
    return dataclasses.replace(tensor, shape=shape, data=data)


def opened(model: PreparedModel, backend: str, dtype: str = "auto") -> Forward:
    setup = CPUModel(model.config, model.weights, dtype, backend=backend).setup(num_blocks=2)
    with torch.inference_mode():
        return choose(model, msgspec.structs.replace(setup, enforce_eager=True), 1).build()(2)


def greedy(forward: Forward, prompt: list[int], wanted: int) -> tuple[list[int], Tensor]:
    """Tokens, and their logits one below the other."""
    tokens, rows, start = list(prompt), [], 0
    with torch.inference_mode():
        while len(rows) < wanted:
            new = np.array(tokens[start:])
            batch = Batch(new, [np.array([1])], np.array([start]), np.array([len(new)]))
            start = len(tokens)
            rows.append(forward.logits(batch, np.array([len(new) - 1])).cpu())
            tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt) :], torch.cat(rows)


@pytest.mark.long  # Interpreted, a whole model takes half a minute.
@pytest.mark.packaged_model
def test_the_default_model_answers_as_in_float32(cut: PreparedModel) -> None:
    prompt = [40, 7, 99, 3, 12]
    tokens, logits = greedy(opened(cut, "triton"), prompt, 2)
    wanted, true = greedy(opened(cut, "reference", "float32"), prompt, 2)
    assert tokens == wanted
    assert logits.dtype == torch.float32
    assert (logits - true).abs().max() < 0.02 * true.abs().max()


@pytest.mark.packaged_model
def test_how_it_is_computed_is_said(default_model: PreparedModel) -> None:
    def recipe(dtype: str, **changes: str) -> str:
        setup = CPUModel(default_model.config, default_model.weights, dtype, backend="triton")
        changed = msgspec.structs.replace(setup.setup(), **changes)
        return choose(default_model, changed, 1).fingerprint

    assert " Q4_1 x bfloat16 KV bfloat16 " in recipe("auto")
    assert " float32 KV float32 " in recipe("float32")
    assert " float32 KV float32 " in recipe("auto", quantization="int8")


@pytest.mark.packaged_model
def test_the_device_holds_the_files_bytes(
    default_model: PreparedModel, device: torch.device
) -> None:
    """Embedding and head are one."""
    (path,) = map(Path, default_model.weights.files)
    weights = opened_weights(default_model, device)
    model = DecoderModel(default_model.config, weights, 16, TritonOps(device, torch.bfloat16))
    assert model.head.weights is model.embedding  # type: ignore[attr-defined]
    held = sum(matrix.nbytes for matrix in weights.matrices)
    assert 0.95 * path.stat().st_size < held < path.stat().st_size


class Noted(QuantisedWeights):
    """Notes the matrices that it hands out."""

    matrices: list[GGUFWeights]

    def take_matrix(self, parts: list[tuple[str, tuple[int, ...]]]) -> Matrix:  # type: ignore[override]
        matrix = super().take_matrix(parts)
        assert isinstance(matrix, GGUFWeights)
        self.matrices.append(matrix)
        return matrix


def opened_weights(model: PreparedModel, device: torch.device) -> Noted:
    tensors = gguf_tensors(model.weights.files, model.config)
    weights = Noted(tensors, torch.bfloat16, device)
    weights.matrices = []
    return weights


@pytest.mark.parametrize("tensor", [2, 3])
@pytest.mark.packaged_model
def test_ranks_parts_of_the_default_model(
    default_model: PreparedModel, tensor: int, device: torch.device
) -> None:
    config, files = default_model.config, default_model.weights
    plain = open_weights(files, config, torch.float32)
    names = {
        "layers.3.self_attn.q_proj.weight": (576, 576),
        "layers.3.self_attn.o_proj.weight": (576, 576),
        "layers.3.mlp.down_proj.weight": (576, 1536),
    }
    for name, shape in names.items():
        parts = []
        for rank in range(tensor):
            shard = shard_of(config, RankPlace(tensor, 1, rank))
            weights = open_weights(
                files, config, torch.bfloat16, device=device, keep_quantised=True
            )
            part = weights.cut_to(shard).take_matrix([(name, shape)])
            assert isinstance(part, GGUFWeights)
            ids = torch.arange(0, part.outputs, 32, device=device)
            parts.append(gguf_rows(part, ids, torch.float32).cpu())
        # Rows are cut at multiples of 64, so every 32nd of all is every 32nd of each part.
        wanted = plain.take(name, shape)[::32]
        assert torch.equal(torch.cat(parts, 0 if "q_proj" in name else 1), wanted)


def stored(kind: str, outputs: int, inputs: int) -> StoredTensor:
    count = outputs * inputs
    if kind in ("F16", "F32"):
        values = torch.randn(count, generator=torch.Generator().manual_seed(3))
        dtype = torch.float16 if kind == "F16" else torch.float32
        data = values.to(dtype).view(torch.uint8).numpy()
    else:
        data = stored_bytes(kind, count)
    return StoredTensor(kind, (outputs, inputs), kind, data)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_one_product_of_several_types(batch_invariant: bool, device: torch.device) -> None:
    """Some files have values of more bits than queries and keys. The floating-point piece and its
    bias are rounded to the activations' type, and its logits; nothing of the others is."""
    kinds = {"q": ("Q4_K", 20), "k": ("Q4_K", 12), "v": ("Q6_K", 5), "f": ("F16", 3)}
    tensors = {name: stored(kind, rows, 256) for name, (kind, rows) in kinds.items()}
    parts = [(name, tensor.shape) for name, tensor in tensors.items()]
    plain = QuantisedWeights(tensors, torch.float32).take_stacked(parts)
    matrix = QuantisedWeights(tensors, torch.bfloat16, device).take_matrix(parts)
    assert isinstance(matrix, Stacked)
    assert [type(piece) for piece in matrix.pieces] == [GGUFMatrix, GGUFMatrix, Tensor]
    generator = torch.Generator().manual_seed(1)
    x, bias = torch.randn(3, 256, generator=generator).bfloat16(), torch.randn(40)
    ops = TritonOps(device, torch.bfloat16, batch_invariant=batch_invariant)
    ours = ops.product(matrix, bias)(x.to(device)).cpu()
    for exact in (plain, bias):
        exact[37:] = exact[37:].bfloat16()
    wanted = x.double() @ plain.double().T
    size = x.double().abs() @ plain.double().abs().T
    assert ours.dtype == torch.bfloat16
    # cuBLAS rounds the floating-point piece before its bias is added, and once more behind it.
    bound = size * 1e-5 + (wanted + bias.double()).abs() * 2**-8
    if not batch_invariant:
        bound[:, 37:] += wanted[:, 37:].abs() * 2**-8
    assert ((ours.double() - wanted - bias.double()).abs() <= bound).all()
    logits = ops.head(matrix)(x.to(device)).cpu()
    assert logits.dtype == torch.float32
    bound = size * 1e-5
    bound[:, 37:] += wanted[:, 37:].abs() * 2**-8
    assert ((logits.double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_many_rows_are_unpacked(
    batch_invariant: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not where all rows are to have the same bits, and not for logits."""
    monkeypatch.setattr("penstock_worker.quantisation.gguf.product.UNPACKED_ROWS", 5)
    tensors = {"x": stored("Q4_1", 7, 64)}
    matrix = QuantisedWeights(tensors, torch.bfloat16, device).take_matrix([("x", (7, 64))])
    true = QuantisedWeights(tensors, torch.float32).take_stacked([("x", (7, 64))])
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    ops = TritonOps(device, torch.bfloat16, batch_invariant=batch_invariant)
    ours = ops.product(matrix, torch.ones(7))(x.to(device)).cpu()
    weight = true if batch_invariant else true.bfloat16()
    wanted = x.double() @ weight.double().T + 1
    size = x.double().abs() @ weight.double().abs().T + 1
    assert ((ours.double() - wanted).abs() <= wanted.abs() * 2**-7 + size * 1e-5).all()
    if batch_invariant:
        alone = ops.product(matrix, torch.ones(7))(x[3:4].to(device)).cpu()
        assert torch.equal(alone, ours[3:4])
    logits = ops.head(matrix)(x.to(device)).cpu()
    exact = x.double() @ true.double().T
    assert ((logits.double() - exact).abs() <= size * 1e-5).all()


def test_tables_of_both_kinds(device: torch.device) -> None:
    ids = torch.tensor([6, 0, 6])
    for kind in ("Q8_0", "F16"):
        tensors = {"embed_tokens.weight": stored(kind, 7, 64)}
        weights = QuantisedWeights(tensors, torch.bfloat16, device)
        matrix = weights.take_matrix([("embed_tokens.weight", (7, 64))])
        table = TritonOps(device, torch.bfloat16).table(matrix)
        true = torch.empty(7, 64)
        tensors["embed_tokens.weight"].read_into(true)
        assert table.rows == 7
        assert torch.equal(table(ids.to(device)).cpu(), true[ids].bfloat16())


def test_what_is_cut_inside_a_group_is_unpacked(
    caplog: pytest.LogCaptureFixture, device: torch.device
) -> None:
    class Odd:
        def part(self, name: str, shape: tuple[int, ...]) -> tuple[range, ...]:
            return range(4), range(16, 80)

        def elsewhere(self, name: str) -> bool:
            return False

    source = stored("Q4_0", 4, 96)
    weights = QuantisedWeights({"x": source}, torch.bfloat16, device)
    weights._cut = Odd()  # type: ignore[assignment]
    matrix = weights.take_matrix([("x", (4, 96))])
    assert isinstance(matrix, Stacked)
    (piece,) = matrix.pieces
    true = torch.empty(4, 96)
    source.read_into(true)
    assert isinstance(piece, Tensor)
    assert torch.equal(piece.cpu(), true[:, 16:80])
    (record,) = caplog.records
    assert "cut inside a group" in record.getMessage()


def test_which_files_stay_as_they_are() -> None:
    for form, dtype, kept in (
        ("gguf", "float32", False),
        ("gguf", "float16", False),
        ("gguf", "Q4_1", True),
        ("gguf", "Q6_K", True),
        ("safetensors", "bfloat16", False),
    ):
        files = WeightFiles(format=form, files=(), dtype=dtype)
        assert stays_quantised("auto", files) == kept
        assert not stays_quantised("float32", files)
