"""Adapters of embedding and head, whole or of low rank: the same bits in any company and over
ranks, and the numbers of a model that has them merged in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.adapters import UnfitAdapter, read_adapter
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock_worker.adapters.fitting import fitted
from penstock_worker.adapters.models import adaptable_decoder
from penstock_worker.batch.logits import in_torch
from penstock_worker.parallel.ranks import Ranks
from tests.adapter_folders import Factors, random_factors, write_peft
from tests.worker.adapters.rig import SMALL, AdapterRig, Sequence_, factors_of, logits_of
from tests.worker.checkpoints import tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.parallel.together import Formed

ALPHA, RANK = 12.0, 7
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
TIED = msgspec.structs.replace(SMALL, tie_word_embeddings=True, embedding_multiplier=3.0)


def files_of(folder: Path, config: ModelConfig) -> WeightFiles:
    return tiny_files(folder, config, seed=int(config.tie_word_embeddings))


def ends(config: ModelConfig, seed: int) -> Factors:
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes = {EMBEDDING: (hidden, vocab), HEAD: (vocab, hidden)}
    return random_factors(shapes, RANK, seed, 0.15)


def matrix(config: ModelConfig, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    shape = (config.vocab_size, config.hidden_size)
    return (random.standard_normal(shape) * 0.2).astype(np.float32)


def folders(root: Path, config: ModelConfig) -> list[Path]:
    """Folders of all kinds."""
    whole = {f"{name}.weight": matrix(config, at) for at, name in enumerate((EMBEDDING, HEAD))}
    head = {f"{HEAD}.weight": whole[f"{HEAD}.weight"]}
    one = ends(config, 1)
    layers = factors_of(config, 5, 2, ("q_proj", "down_proj"))
    return [
        write_peft(root / "low", one | layers, alpha=ALPHA, r=5, rank_pattern={"x": RANK}),
        write_peft(root / "whole", {}, whole=whole),
        write_peft(
            root / "mixed",
            {EMBEDDING: one[EMBEDDING]} | layers,
            whole=head,
            r=5,
            rank_pattern={"x": RANK},
        ),
        write_peft(root / "head", {HEAD: one[HEAD]}, alpha=ALPHA),
    ]


def prompts(count: int) -> list[list[int]]:
    random = np.random.default_rng(5)
    counts = [1, 2, 3, 7, 13, 20, 29, 33]
    return [random.integers(0, SMALL.vocab_size, counts[at % 8]).tolist() for at in range(count)]


@pytest.mark.parametrize("config", [SMALL, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("backend", "dtype", "quantization"),
    [
        ("reference", "bfloat16", "none"),
        ("cpu", "float32", "none"),
        ("cpu", "bfloat16", "none"),
        ("cpu", "auto", "int8"),
    ],
)
def test_bits_of_adapted_ends_are_the_same_alone_crowded_and_in_chunks(
    tmp_path: Path, config: ModelConfig, backend: str, dtype: str, quantization: str
) -> None:
    files = files_of(tmp_path, config)
    rig = AdapterRig(CPUModel(config, files, dtype, backend=backend, quantization=quantization))
    held = [*map(rig.hold, folders(tmp_path, config)), None]
    sequences = [Sequence_(each, held[at % 5]) for at, each in enumerate(prompts(20))]
    alone = [rig.logits([each])[0] for each in sequences]
    for together in (rig.logits(sequences), rig.logits(sequences, chunk=5)):
        assert all(map(torch.equal, alone, together))
    without = replace(rig.model, max_loras=0)
    forward = without.forward(block_size=16, num_blocks=128, threads=2)
    for each, one in zip(sequences, alone, strict=True):
        (base,) = logits_of(forward, [Sequence_(each.tokens)])
        assert torch.equal(base, one) == (each.adapter is None)


@pytest.mark.parametrize("config", [SMALL, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("backend", "dtype"), [("reference", "float32"), ("cpu", "float32"), ("cpu", "bfloat16")]
)
def test_as_a_model_with_the_adapter_merged_in(
    tmp_path: Path, config: ModelConfig, backend: str, dtype: str
) -> None:
    files = files_of(tmp_path, config)
    rig = AdapterRig(CPUModel(config, files, dtype, backend=backend))
    plain = load_file(files.files[0])
    plain.setdefault(f"{HEAD}.weight", plain[f"{EMBEDDING}.weight"].clone())
    one, whole = ends(config, 1), {f"{HEAD}.weight": torch.from_numpy(matrix(config, 1))}
    low = dict(plain)
    for name, (down, up) in one.items():
        product = torch.from_numpy(up).double() @ torch.from_numpy(down).double()
        added = product.T if name == EMBEDDING else product
        low[f"{name}.weight"] = (plain[f"{name}.weight"].double() + ALPHA / RANK * added).float()
    changed = {
        write_peft(tmp_path / "low", one, alpha=ALPHA): low,
        write_peft(tmp_path / "whole", {}, whole={HEAD + ".weight": matrix(config, 1)}): plain
        | whole,
    }
    sequence = Sequence_(prompts(8)[7])
    (rounded,) = rig.logits([sequence])
    exact = logprobs(tmp_path, config, plain, sequence)
    rounding = float((rounded.log_softmax(-1) - exact).abs().max())
    for folder, tensors in changed.items():
        (found,) = rig.logits([replace(sequence, adapter=rig.hold(folder))])
        expected = logprobs(tmp_path, config, tensors, sequence)
        error = float((found.log_softmax(-1) - expected).abs().max())
        assert error < max(2e-4, 2.5 * rounding)
        assert (exact - expected).abs().max() > 10 * error


def logprobs(
    folder: Path, config: ModelConfig, tensors: dict[str, torch.Tensor], sequence: Sequence_
) -> torch.Tensor:
    """Log-probabilities of a model whose embedding and head are two."""
    save_file(tensors, folder / "merged.safetensors")
    files = WeightFiles(
        format="safetensors", files=(str(folder / "merged.safetensors"),), dtype="float32"
    )
    untied = msgspec.structs.replace(config, tie_word_embeddings=False)
    model = CPUModel(untied, files, "float32", backend="reference")
    forward = model.forward(block_size=16, num_blocks=16, threads=1)
    return logits_of(forward, [sequence])[0].log_softmax(-1)


class OverRanks:
    """A rig for each rank, whose last stage says the same everywhere."""

    def __init__(self, formed: Formed, model: CPUModel) -> None:
        self._formed = formed
        self._rigs = dict(
            zip(formed.ranks, formed.each(lambda ranks: AdapterRig(model, 1, ranks)), strict=True)
        )

    def logits(self, sequences: list[Any]) -> list[torch.Tensor]:
        """`sequences`: (tokens, folder of the adapter or None)."""

        def compute(ranks: Ranks) -> list[torch.Tensor] | None:
            rig = self._rigs[ranks]
            held = {folder: rig.hold(folder) for _, folder in sequences if folder is not None}
            own = [Sequence_(tokens, held.get(folder)) for tokens, folder in sequences]
            found = logits_of(_AllRows(rig.forward, ranks), own)
            return found if ranks.place.last else None

        first, *others = (each for each in self._formed.each(compute) if each is not None)
        assert all(all(map(torch.equal, first, other)) for other in others)
        return first


class _AllRows:
    """An earlier stage's logits: zeros, as many as the last one's."""

    def __init__(self, forward: Any, ranks: Ranks) -> None:
        self._forward, self._ranks = forward, ranks

    def logits(self, batch: Any, rows: np.ndarray) -> torch.Tensor:
        found = in_torch(self._forward.logits(batch, rows))
        return found if self._ranks.place.last else torch.zeros(len(rows), 1)


@pytest.mark.parametrize(
    ("backend", "tensor", "pipeline"), [("cpu", 2, 1), ("cpu", 1, 2), ("reference", 2, 1)]
)
def test_over_ranks(tmp_path: Path, backend: str, tensor: int, pipeline: int) -> None:
    model = CPUModel(SMALL, files_of(tmp_path, SMALL), "float32", backend=backend)
    paths = folders(tmp_path, SMALL)
    sequences = [(tokens, [*paths, None][at % 5]) for at, tokens in enumerate(prompts(10))]
    rig = AdapterRig(model)
    held = {path: rig.hold(path) for path in paths}
    one = rig.logits([Sequence_(tokens, held.get(path)) for tokens, path in sequences])
    with Formed(tensor, pipeline) as formed:
        ours = OverRanks(formed, model).logits(sequences)
    for mine, theirs in zip(ours, one, strict=True):
        if backend == "cpu":
            assert torch.equal(mine, theirs)
        else:  # Sums are in another order.
            assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "rows", "allowed", "said"),
    [
        ("lm_head.weight", 301, False, r"that needs --lora-whole-matrices"),
        ("lm_head.weight", 304, True, "with 3 tokens of its own is not served"),
        ("model.embed_tokens.weight", 300, True, r"has shape \(300, 96\); the model's has"),
        ("model.norm.weight", 301, True, "may bring the weight of embed_tokens and lm_head"),
        ("lm_head.bias", 301, True, "may bring the weight of"),
    ],
)
def test_what_does_not_fit(
    tmp_path: Path, name: str, rows: int, *, allowed: bool, said: str
) -> None:
    whole = {name: np.zeros((rows, SMALL.hidden_size), np.float32)}
    _, adapter = read_adapter(write_peft(tmp_path / "a", {}, whole=whole))
    with pytest.raises(UnfitAdapter, match=said):
        fitted(adapter, adaptable_decoder(SMALL, takes_whole=allowed), 64)


def test_a_matrix_that_is_not_finite(tmp_path: Path) -> None:
    values = matrix(SMALL, 1)
    values[200, 3] = np.nan
    rig = AdapterRig(CPUModel(SMALL, files_of(tmp_path, SMALL), "bfloat16"))
    with pytest.raises(UnfitAdapter, match=r"lm_head\.weight holds numbers"):
        rig.hold(write_peft(tmp_path / "a", {}, whole={f"{HEAD}.weight": values}))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_numbers_that_become_too_large(tmp_path: Path, backend: str) -> None:
    """The scale makes them so, or the dtype that steps compute with."""
    rig = AdapterRig(CPUModel(SMALL, files_of(tmp_path, SMALL), "bfloat16", backend=backend))
    with pytest.raises(UnfitAdapter, match="too large"):
        rig.hold(write_peft(tmp_path / "scale", ends(SMALL, 1), alpha=1e300))
    values = matrix(SMALL, 1)
    values[200, 3] = np.finfo(np.float32).max
    with pytest.raises(UnfitAdapter, match=r"lm_head\.weight holds numbers that are too large"):
        rig.hold(write_peft(tmp_path / "whole", {}, whole={f"{HEAD}.weight": values}))
