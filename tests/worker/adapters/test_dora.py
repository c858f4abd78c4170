"""Adapters whose rows have lengths of their own (DoRA): the same bits in any company and over
ranks, and the numbers of a model that has them merged in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.adapters import UnfitAdapter, read_adapter
from penstock.model.prepared_model import WeightFiles
from penstock_worker.adapters.fitting import fitted
from penstock_worker.adapters.models import adaptable_decoder
from testing.model_configs import varied
from tests.adapter_folders import Factors, random_factors, write_peft
from tests.worker.adapters.rig import SMALL, AdapterRig, Sequence_, factors_of, logits_of
from tests.worker.adapters.test_ends import OverRanks
from tests.worker.checkpoints import tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.parallel.together import Formed

ALPHA, RANK = 10.0, 6
BIASED = varied(SMALL, qkv_bias=True)
HEAD = {"lm_head": (SMALL.vocab_size, SMALL.hidden_size)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> WeightFiles:
    return tiny_files(tmp_path_factory.mktemp("model"), BIASED)


@pytest.fixture(scope="module")
def factors() -> Factors:
    return factors_of(BIASED, RANK, 4) | random_factors(HEAD, RANK, 5, 0.15)


@pytest.fixture(scope="module")
def folder(factors: Factors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(3)
    lengths = {
        name: random.uniform(0.5, 4, len(up)).astype(np.float32)
        for name, (_, up) in factors.items()
    }
    path = tmp_path_factory.mktemp("adapter")
    return write_peft(path, factors, alpha=ALPHA, magnitudes=lengths)


def sequences() -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(0, SMALL.vocab_size, count).tolist() for count in (1, 3, 14, 33, 40)]


@pytest.mark.parametrize(
    ("backend", "dtype", "quantization"),
    [
        ("reference", "bfloat16", "none"),
        ("cpu", "float32", "none"),
        ("cpu", "bfloat16", "none"),
        ("cpu", "auto", "int8"),
    ],
)
def test_doras_bits_are_the_same_alone_crowded_and_in_chunks(
    files: WeightFiles, folder: Path, tmp_path: Path, backend: str, dtype: str, quantization: str
) -> None:
    rig = AdapterRig(CPUModel(BIASED, files, dtype, backend=backend, quantization=quantization))
    held = [rig.hold(folder), rig.hold(write_peft(tmp_path / "a", factors_of(BIASED, 5, 1))), None]
    crowd = [Sequence_(each, adapter) for each in sequences() for adapter in held]
    alone = [rig.logits([each])[0] for each in crowd]
    for together in (rig.logits(crowd), rig.logits(crowd, chunk=5)):
        assert all(map(torch.equal, alone, together))
    forward = replace(rig.model, max_loras=0).forward(block_size=16, num_blocks=128, threads=2)
    for each, one in zip(crowd, alone, strict=True):
        (base,) = logits_of(forward, [Sequence_(each.tokens)])
        assert torch.equal(base, one) == (each.adapter is None)


@pytest.mark.parametrize(
    ("backend", "dtype"), [("reference", "float32"), ("cpu", "float32"), ("cpu", "bfloat16")]
)
def test_as_a_model_with_the_adapter_merged_in(
    files: WeightFiles, factors: Factors, folder: Path, tmp_path: Path, backend: str, dtype: str
) -> None:
    tensors = load_file(files.files[0])
    lengths = load_file(folder / "adapter_model.safetensors")
    for name, (down, up) in factors.items():
        changed = tensors[f"{name}.weight"].double()
        changed += ALPHA / RANK * torch.from_numpy(up).double() @ torch.from_numpy(down).double()
        wanted = lengths[f"base_model.model.{name}.lora_magnitude_vector"].double()
        gains = wanted / torch.linalg.norm(changed, dim=1)
        tensors[f"{name}.weight"] = (changed * gains[:, None]).float()
    save_file(tensors, tmp_path / "merged.safetensors")
    merged = msgspec.structs.replace(files, files=(str(tmp_path / "merged.safetensors"),))
    rig = AdapterRig(CPUModel(BIASED, files, dtype, backend=backend))
    tokens = sequences()[-1]
    exact = CPUModel(BIASED, files, "float32", backend="reference")
    base, expected = (
        logits_of(each.forward(block_size=16, num_blocks=16, threads=1), [Sequence_(tokens)])[
            0
        ].log_softmax(-1)
        for each in (exact, replace(exact, weights=merged))
    )
    (rounded,), (found,) = (
        rig.logits([Sequence_(tokens, held)]) for held in (None, rig.hold(folder))
    )
    rounding = float((rounded.log_softmax(-1) - base).abs().max())
    error = float((found.log_softmax(-1) - expected).abs().max())
    assert error < max(3e-4, 2.5 * rounding)
    assert (base - expected).abs().max() > 8 * error


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_over_ranks(files: WeightFiles, folder: Path, backend: str) -> None:
    model = CPUModel(BIASED, files, "float32", backend=backend)
    rig = AdapterRig(model)
    held = rig.hold(folder)
    asked = [(tokens, folder if at % 2 else None) for at, tokens in enumerate(sequences())]
    one = rig.logits([Sequence_(tokens, held if path else None) for tokens, path in asked])
    with Formed(2) as formed:
        ours = OverRanks(formed, model).logits(asked)
    for mine, theirs in zip(ours, one, strict=True):
        if backend == "cpu":
            assert torch.equal(mine, theirs)
        else:  # Sums are in another order.
            assert torch.allclose(mine, theirs, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_tied_head(tmp_path: Path, backend: str) -> None:
    """Its rows have the embedding's lengths."""
    tied = msgspec.structs.replace(SMALL, tie_word_embeddings=True)
    files = tiny_files(tmp_path, tied)
    rig = AdapterRig(CPUModel(tied, files, "float32", backend=backend))
    (down, up), tokens = random_factors(HEAD, 4, 5, 0.1)["lm_head"], sequences()[2]
    own = load_file(files.files[0])["model.embed_tokens.weight"].double()
    changed = own + 2 * torch.from_numpy(up).double() @ torch.from_numpy(down).double()
    gains = 3 / torch.linalg.norm(changed, dim=1)
    lengths = {"lm_head": np.full(len(up), 3, np.float32)}
    path = write_peft(tmp_path / "a", {"lm_head": (down, up)}, alpha=8, magnitudes=lengths)
    whole = {"lm_head.weight": (changed * gains[:, None]).float().numpy()}
    paths = (path, write_peft(tmp_path / "b", {}, whole=whole))
    found, wanted = (rig.logits([Sequence_(tokens, rig.hold(each))])[0] for each in paths)
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_head_with_a_bias(tmp_path: Path, backend: str) -> None:
    """It stays as it was."""
    config = varied(SMALL, head_bias=True)
    made = tiny_files(tmp_path, SMALL)
    (down, up), tokens = random_factors(HEAD, 4, 5, 0.1)["lm_head"], sequences()[2]
    tensors = load_file(made.files[0])
    tensors["lm_head.bias"] = torch.linspace(-4, 4, len(up))
    save_file(tensors, tmp_path / "biased.safetensors")
    files = msgspec.structs.replace(made, files=(str(tmp_path / "biased.safetensors"),))
    changed = tensors["lm_head.weight"].double()
    changed += 2 * torch.from_numpy(up).double() @ torch.from_numpy(down).double()
    gains = 3 / torch.linalg.norm(changed, dim=1)
    tensors["lm_head.weight"] = (changed * gains[:, None]).float()
    save_file(tensors, tmp_path / "merged.safetensors")
    merged = msgspec.structs.replace(files, files=(str(tmp_path / "merged.safetensors"),))
    lengths = {"lm_head": np.full(len(up), 3, np.float32)}
    path = write_peft(tmp_path / "a", {"lm_head": (down, up)}, alpha=8, magnitudes=lengths)
    rig = AdapterRig(CPUModel(config, files, "float32", backend=backend))
    (found,) = rig.logits([Sequence_(tokens, rig.hold(path))])
    whole = CPUModel(config, merged, "float32", backend=backend)
    forward = whole.forward(block_size=16, num_blocks=16, threads=1)
    (wanted,) = logits_of(forward, [Sequence_(tokens)])
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_what_is_not_served(tmp_path: Path, files: WeightFiles) -> None:
    shapes = {"model.embed_tokens": (SMALL.hidden_size, SMALL.vocab_size)}
    factors = random_factors(shapes, 4, 1)
    lengths = {"model.embed_tokens": np.ones(SMALL.hidden_size, np.float32)}
    rig = AdapterRig(CPUModel(BIASED, files, "float32"))
    with pytest.raises(UnfitAdapter, match="embed_tokens with DoRA, which is not supported"):
        rig.hold(write_peft(tmp_path / "a", factors, magnitudes=lengths))
    q = "model.layers.0.self_attn.q_proj"
    factors = factors_of(BIASED, 4, 1, (q.removeprefix("model."),))
    short = {q: np.ones(3, np.float32)}
    with pytest.raises(UnfitAdapter, match="has 3 numbers for 128 outputs"):
        rig.hold(write_peft(tmp_path / "b", factors, magnitudes=short))
    infinite = {q: np.full(128, np.inf, np.float32)}
    path = write_peft(tmp_path / "c", factors, magnitudes=infinite)
    with pytest.raises(UnfitAdapter, match="gives row norms that are zero"):
        rig.hold(path)
    with pytest.raises(UnfitAdapter, match="the model's own weight files"):
        fitted(read_adapter(path)[1], adaptable_decoder(BIASED), 64)
    with pytest.raises(UnfitAdapter, match=r"use_dora True, but .* has no lora_magnitude_vector"):
        read_adapter(write_peft(tmp_path / "d", factors, use_dora=True))
