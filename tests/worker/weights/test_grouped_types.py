"""GGUF types that the CPU kernels hold by their groups: the file's own numbers, value by value."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from penstock.model.prepared_model import WeightFiles
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, product
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.quantisation.registry import FORMATS
from penstock_worker.weights.quantised import QuantisedWeights
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights
from testing.model_configs import llama_config
from tests.worker.checkpoints import tiny_tensors
from tests.worker.cpu_model import CPUModel
from tests.worker.models.parity import run_with_logits
from tests.worker.weights.test_weights import HALVES, dequantised, put_halves, stored_bytes

pytestmark = pytest.mark.timeout(240)

GROUPED = [name for name, form in FORMATS.items() if form.grouped is not None]
OUTPUTS, INPUTS = 38, 512


def pairs(rows: np.ndarray) -> np.ndarray:
    return np.stack(np.split(rows, 2), 1).reshape(rows.shape)


def matrix(kind: str, **options: object) -> tuple[StoredTensor, CPUPacking]:
    data = stored_bytes(kind, OUTPUTS * INPUTS)
    stored = StoredTensor("blk.0.x", (OUTPUTS, INPUTS), kind, data, **options)
    return stored, CPUPacking(Weights({"x.weight": stored}, torch.float32), threads=2)


def weights_of(packed: PackedMatrix) -> np.ndarray:
    """A row of 127 and zeros is exact as signed bytes, with a scale of 1."""
    return product(127 * np.eye(INPUTS, dtype=np.float32), packed).T


@pytest.mark.parametrize("rearranged", [False, True], ids=["as stored", "rearranged"])
@pytest.mark.parametrize("kind", GROUPED)
def test_rows_read_back_equal_the_gguf_package(kind: str, rearranged: bool) -> None:
    """They differ from 127 times the weights by float32's rounding alone."""
    stored, packing = matrix(kind, rearrange=pairs if rearranged else None)
    true = dequantised(kind, stored.data).reshape(OUTPUTS, INPUTS)
    if rearranged:
        true = pairs(true)
    read = weights_of(packing.matrix("x", OUTPUTS, INPUTS, kind=None))
    size = np.abs(127 * true).reshape(OUTPUTS, -1, 16).max(-1).repeat(16, axis=1)
    assert (np.abs(read - 127 * true) <= 8 * size * 2.0**-24).all()


@pytest.mark.parametrize("kind", GROUPED)
def test_a_rank_has_its_rows(kind: str) -> None:
    _, packing = matrix(kind)
    whole = weights_of(packing.matrix("x", OUTPUTS, INPUTS, kind=None))
    _, packing = matrix(kind)
    part = weights_of(packing.matrix("x", OUTPUTS, INPUTS, kind=None, rows=range(7, 30)))
    assert np.array_equal(part, whole[7:30])


@pytest.mark.parametrize("kind", GROUPED)
def test_other_dtypes_unpack(kind: str) -> None:
    stored, packing = matrix(kind)
    packed = packing.matrix("x", OUTPUTS, INPUTS, kind=MatrixKind.F32)
    true = dequantised(kind, stored.data).reshape(OUTPUTS, INPUTS)
    assert np.array_equal(product(np.eye(INPUTS, dtype=np.float32), packed).T, true)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    monkeypatch.setattr(
        "penstock_worker.weights.stored.log.warning",
        lambda event, **fields: found.append({"event": event, **fields}),
    )
    return found


def test_the_log_says_how_much_larger_they_are(said: list[dict[str, object]]) -> None:
    stored, packing = matrix("IQ2_S")
    packed = packing.matrix("x", OUTPUTS, INPUTS, kind=None)
    assert packed.size > 3 * stored.data.nbytes
    packing.report()
    weights = QuantisedWeights({"x.weight": stored}, torch.bfloat16)
    weights.take_matrix([("x.weight", (OUTPUTS, INPUTS))])
    weights.finish()
    assert len(said) == 2
    for line in said:
        assert "more memory than in the file" in str(line["event"])
        assert line["types"] == "IQ2_S"


CONFIG = llama_config(
    architecture="llama",
    vocab_size=64,
    hidden_size=256,
    intermediate_size=512,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    max_position=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)


def sized(kind: str, elements: int) -> np.ndarray:
    """Random blocks whose values vary as those of a trained matrix of 256 inputs."""
    blocks = stored_bytes(kind, elements).reshape(-1, FORMATS[kind].bytes)
    for at in HALVES[kind]:
        put_halves(kind, blocks, at, np.ones(len(blocks), np.float16))
    unit = 1 / 16 / dequantised(kind, blocks.ravel()).std()
    for at in HALVES[kind]:
        put_halves(kind, blocks, at, np.full(len(blocks), unit, np.float16))
    return blocks


def model_file(path: Path, kind: str, *, unpacked: bool) -> WeightFiles:
    """A model whose matrices are of one type, or F32 with the same numbers."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, CONFIG.num_layers)
    writer = gguf.GGUFWriter(path, "llama")
    for name, tensor in tiny_tensors(CONFIG).items():
        theirs = names.get_name(name, try_suffixes=(".weight",))
        if tensor.dim() != 2:
            writer.add_tensor(theirs, tensor.numpy())
            continue
        data = sized(kind, tensor.numel())
        if unpacked:
            values = dequantised(kind, data.ravel()).astype(np.float32)
            writer.add_tensor(theirs, values.reshape(tensor.shape))
        else:
            raw = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(theirs, data.reshape(len(tensor), -1), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return WeightFiles(format="gguf", files=(str(path),), dtype="F32" if unpacked else kind)


@pytest.mark.parametrize("kind", [each for each in GROUPED if each != "Q2_0"])
def test_a_models_logits_are_those_of_its_unpacked_twin(kind: str, tmp_path: Path) -> None:
    """But for activations of 8 bits. The package can't write Q2_0."""
    prompt = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]]
    found = []
    for unpacked, dtype in ((False, "auto"), (True, "float32")):
        files = model_file(tmp_path / f"{dtype}.gguf", kind, unpacked=unpacked)
        model = CPUModel(CONFIG, files, dtype, positions=64)
        ((_, logits),) = run_with_logits(model, prompt, 1)
        found.append(logits[: len(prompt[0])])
    ours, true = found
    assert float((ours - true).norm() / true.norm()) < 0.03
