"""A model with adapters, computed by hand-made batches, and its twin with an adapter merged in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from penstock.adapters import read_adapter
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock_worker.adapters.adaptable import adaptable_modules
from penstock_worker.adapters.fitting import fitted
from penstock_worker.adapters.interface import BatchAdapters, HeldAdapter
from penstock_worker.adapters.models import adaptable_decoder
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.weights.opening import open_weights
from testing.model_configs import llama_config
from tests.adapter_folders import Factors, random_factors
from tests.worker.cpu_model import CPUModel

SMALL = llama_config(
    architecture="llama",
    vocab_size=301,
    hidden_size=96,
    intermediate_size=176,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    max_position=512,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)
RANKS = (4, 5, 8, 16, 17, 32, 48, 64)
BLOCKS_EACH = 4


@dataclass
class Sequence_:
    """Tokens of a sequence, and its adapter."""

    tokens: list[int]
    adapter: HeldAdapter | None = None


COMPUTED = (
    ("reference", "float32", "none"),
    ("reference", "bfloat16", "none"),
    ("cpu", "float32", "none"),
    ("cpu", "bfloat16", "none"),
    ("cpu", "auto", "int8"),
)
"""Backend, dtype and quantization: what rows with adapters are computed in."""


class AdapterRig:
    """A model that takes adapters."""

    def __init__(
        self,
        model: CPUModel,
        threads: int = 2,
        ranks: Ranks = ALONE,
        *,
        rank: int = 64,
        whole_matrices: bool = True,
        experts: bool = False,
    ) -> None:
        self.model = replace(
            model,
            max_loras=16,
            max_lora_rank=rank,
            lora_whole_matrices=whole_matrices,
            lora_experts=experts,
        )
        setup = self.model.setup(num_blocks=128)
        self.recipe = choose(self.model.prepared(), setup, threads, ranks)
        with torch.inference_mode():
            self.forward = self.recipe.build()(128)

    def hold(self, path: Path) -> HeldAdapter:
        _, adapter = read_adapter(path)
        model = self.model
        weights = partial(open_weights, model.weights, model.config, torch.float32)
        known = adaptable_decoder(model.config, takes_whole=True, takes_experts=model.lora_experts)
        modules = fitted(adapter, known, 64, weights)
        with torch.inference_mode():
            return self.recipe.adapters.hold(modules)

    def logits(self, sequences: Sequence[Sequence_], chunk: int = 64) -> list[torch.Tensor]:
        return logits_of(self.forward, sequences, chunk)


def logits_of(
    forward: Forward, sequences: Sequence[Sequence_], chunk: int = 64
) -> list[torch.Tensor]:
    """Returns each sequence's logits at all its tokens, computed `chunk` at a time together."""
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    for start in range(0, max(len(each.tokens) for each in sequences), chunk):
        running = [at for at, each in enumerate(sequences) if len(each.tokens) > start]
        parts = [sequences[at].tokens[start : start + chunk] for at in running]
        counts = np.array([len(part) for part in parts])
        held = [each for at in running if (each := sequences[at].adapter) is not None]
        distinct = tuple({id(each): each for each in held}.values())
        which = [
            next((n for n, each in enumerate(distinct) if each is sequences[at].adapter), -1)
            for at in running
        ]
        batch = Batch(
            tokens=np.concatenate([np.array(part) for part in parts]),
            tables=[np.arange(at * BLOCKS_EACH, (at + 1) * BLOCKS_EACH) for at in running],
            starts=np.full(len(running), start),
            counts=counts,
            slots=running,
            adapters=BatchAdapters(distinct, np.array(which)) if distinct else None,
        )
        with torch.inference_mode():
            rows = in_torch(forward.logits(batch, np.arange(counts.sum())))
        for at, part in zip(running, rows.split(counts.tolist()), strict=True):
            found[at].append(part.clone())
    return [torch.cat(parts) for parts in found]


def factors_of(
    config: ModelConfig, rank: int, seed: int, names: Sequence[str] = (), size: float = 0.15
) -> Factors:
    """Random factors for all modules, or those whose names end so."""
    shapes = {
        f"model.{name}": shape
        for name, shape in adaptable_modules(config).items()
        if not names or name.endswith(tuple(names))
    }
    return random_factors(shapes, rank, seed, size)


def merged(files: WeightFiles, factors: Factors, scale: float, path: Path) -> WeightFiles:
    """Another checkpoint: W + scale * B A, summed in float64."""
    tensors = load_file(files.files[0])
    for name, (down, up) in factors.items():
        weight = tensors[f"{name}.weight"].double()
        added = torch.from_numpy(up).double() @ torch.from_numpy(down).double()
        tensors[f"{name}.weight"] = (weight + scale * added).float()
    save_file(tensors, path)
    return WeightFiles(format="safetensors", files=(str(path),), dtype="float32")
