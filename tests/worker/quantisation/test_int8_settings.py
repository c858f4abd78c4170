"""--kv-cache-dtype, --quantization and --matmul-precision: what they cost, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from penstock.errors import StartupError
from penstock.model.prepared_model import PreparedModel, WeightFiles
from penstock_kernels.cpu.matrix import MatrixKind
from penstock_worker.forward.cpu.packing import ON_LOAD
from penstock_worker.forward.cpu.reading import CPUWeights
from penstock_worker.weights.opening import open_weights
from tests.worker.checkpoints import tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.forward.test_cpu_forward import BASE, prompts, variant
from tests.worker.models.parity import run_with_logits
from tests.worker.weights.test_weights import write_gguf

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> WeightFiles:
    return tiny_files(tmp_path_factory.mktemp("tiny"), BASE)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("cache", "per_head"),
    [("auto", 4 * 32), ("float32", 4 * 32), ("bfloat16", 2 * 32), ("int8", 32 + 4)],
)
def test_memory_of_a_block(files: WeightFiles, backend: str, cache: str, per_head: int) -> None:
    """2 layers, keys and values of 1 head of 32, 16 tokens."""
    model = CPUModel(BASE, files, "float32", kv_cache_dtype=cache, backend=backend)
    assert model.recipe().block_bytes == 2 * 2 * per_head * 16


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_fingerprints_tell_caches_apart(files: WeightFiles, backend: str) -> None:
    caches = ("float32", "bfloat16", "int8")
    fingerprint = [
        CPUModel(BASE, files, "bfloat16", kv_cache_dtype=cache, backend=backend)
        .recipe()
        .fingerprint
        for cache in caches
    ]
    assert all(f"KV {cache}" in said for cache, said in zip(caches, fingerprint, strict=True))
    auto = CPUModel(BASE, files, "bfloat16", backend=backend).recipe().fingerprint
    assert auto == fingerprint[1]


def test_quantising_is_in_the_fingerprint(files: WeightFiles) -> None:
    recipe = CPUModel(BASE, files, "auto", quantization="int8").recipe()
    assert recipe.dtype == "int8"
    assert recipe.fingerprint != CPUModel(BASE, files, "auto").recipe().fingerprint
    assert "int8 KV bfloat16" in recipe.fingerprint


def test_two_parts_are_nearer_to_exact_activations(default_model: PreparedModel) -> None:
    """Logits, beside those of the same weights in float32; and the fingerprint says it."""
    medium = CPUModel(default_model.config, default_model.weights, "auto", kv_cache_dtype="float32")
    high = replace(medium, matmul_precision="high")
    assert high.recipe().fingerprint != medium.recipe().fingerprint
    given = prompts(default_model.config, 40)
    one, two, exact = (
        run_with_logits(each, given, 1)[0][1]
        for each in (medium, high, replace(medium, dtype="float32"))
    )
    assert (two - exact).abs().max() < (one - exact).abs().max() / 30


def test_medium_is_what_it_was(files: WeightFiles) -> None:
    model = CPUModel(BASE, files, "auto", quantization="int8")
    assert model.recipe().fingerprint.endswith(" int8 KV bfloat16")


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_other_backends_refuse_two_parts(files: WeightFiles, backend: str) -> None:
    model = CPUModel(BASE, files, "float32", backend=backend, matmul_precision="high")
    with pytest.raises(StartupError, match=f"the cpu backend alone has; allowed on {backend} is"):
        model.recipe()


@pytest.mark.parametrize("tied", [True, False])
def test_which_matrices_become_int8(tmp_path: Path, tied: bool) -> None:
    """All that are multiplied with; an embedding that is only looked up keeps its bits."""
    config = variant(tie_word_embeddings=tied)
    stored = open_weights(tiny_files(tmp_path, config), config, torch.float32)
    weights = CPUWeights(config, stored, ON_LOAD["int8"], threads=1).read(16)
    layer = weights.layers[1]
    for matrix in (layer.query, layer.key, layer.value, layer.output, layer.gate, layer.up,
                   layer.down, weights.head):  # fmt: skip
        assert matrix is not None
        assert matrix.struct.kind == MatrixKind.S8H
    assert weights.embedding.struct.kind == (MatrixKind.S8H if tied else MatrixKind.F32)


def test_a_plain_gguf_file_becomes_what_safetensors_become(tmp_path: Path) -> None:
    """Though it keeps the rows of queries and keys in another order."""
    gguf = msgspec.structs.replace(write_gguf(tmp_path / "tiny.gguf", BASE), dtype="float32")
    given = prompts(BASE, 20)
    (_, ours), (_, same) = (
        run_with_logits(CPUModel(BASE, each, "auto", quantization="int8"), given, 1)[0]
        for each in (gguf, tiny_files(tmp_path, BASE))
    )
    assert torch.equal(ours, same)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_weights_with_a_dtype_are_refused(files: WeightFiles, dtype: str) -> None:
    with pytest.raises(StartupError, match=f"compute in dtype {dtype}; allowed is dtype auto"):
        CPUModel(BASE, files, dtype, quantization="int8").recipe()


@pytest.mark.parametrize("backend", ["cpu", "auto"])
def test_what_is_quantised_already_is_refused(default_model: PreparedModel, backend: str) -> None:
    stored = default_model.weights.dtype
    model = CPUModel(
        default_model.config, default_model.weights, "auto", quantization="int8", backend=backend
    )
    with pytest.raises(StartupError, match=f"weights are {stored} already; allowed is none, or a"):
        model.recipe()


def test_the_reference_does_not_quantise(files: WeightFiles) -> None:
    model = CPUModel(BASE, files, "auto", quantization="int8", backend="reference")
    with pytest.raises(StartupError, match="quantization is int8, which needs the cpu backend"):
        model.recipe()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_unknown_cache_type_is_refused(files: WeightFiles, backend: str) -> None:
    model = CPUModel(BASE, files, "auto", kv_cache_dtype="fp8", backend=backend)
    with pytest.raises(StartupError, match="'fp8'; allowed are auto, float32, bfloat16, int8"):
        model.recipe()


def test_an_unknown_quantization_is_refused(files: WeightFiles) -> None:
    with pytest.raises(StartupError, match="'int4'; allowed are none, int8"):
        CPUModel(BASE, files, "auto", quantization="int4").recipe()
