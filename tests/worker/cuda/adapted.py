"""A backend of a small model with adapters, computed by hand-made batches of few rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch

from penstock.adapters import read_adapter
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock_worker.adapters.fitting import fitted
from penstock_worker.adapters.interface import BatchAdapters, HeldAdapter
from penstock_worker.adapters.models import AdaptableModel, adaptable_decoder
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.queued import TritonForward
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.weights.opening import open_weights
from testing.model_configs import varied
from tests.worker.adapters.rig import SMALL
from tests.worker.cpu_model import CPUModel

CONFIG = varied(SMALL, num_layers=2, vocab_size=97)
BLOCK, BLOCKS = 4, 32
RANK = 17
Row = tuple[list[int], int, int, int]
"""New tokens, tokens before, number of the sequence, adapter or -1."""


class Served:
    """A backend with adapters, of which `most` have room."""

    def __init__(
        self,
        files: WeightFiles,
        folders: list[Path],
        backend: str,
        most: int = 3,
        ranks: Ranks = ALONE,
        config: ModelConfig = CONFIG,
        *,
        dtype: str = "float32",
        whole: bool = False,
        experts: bool = False,
    ) -> None:
        model = CPUModel(
            config,
            files,
            dtype,
            backend=backend,
            positions=64,
            max_loras=most,
            max_lora_rank=RANK,
            lora_whole_matrices=whole,
            lora_experts=experts,
        )
        setup = model.setup(block_size=BLOCK, num_blocks=BLOCKS)
        setup = msgspec.structs.replace(
            setup, max_num_seqs=4, max_num_batched_tokens=32, batch_invariant=True
        )
        self.setup, self.model = setup, model
        with torch.inference_mode():
            recipe = choose(model.prepared(), setup, 1, ranks)
            self.forward = recipe.build()(BLOCKS)
            assert recipe.adapters is not None
            self.holds = recipe.adapters
            self.held = [self.hold(folder) for folder in folders]

    @property
    def adaptable(self) -> AdaptableModel:
        model = self.model
        return adaptable_decoder(
            model.config,
            takes_whole=model.lora_whole_matrices,
            takes_experts=model.lora_experts,
        )

    def hold(self, folder: Path) -> HeldAdapter:
        _, adapter = read_adapter(folder)
        weights = partial(open_weights, self.model.weights, self.model.config, torch.float32)
        return self.holds.hold(fitted(adapter, self.adaptable, RANK, weights))

    def logits(self, *rows: Row, wait: bool = True) -> list[torch.Tensor]:
        which = [adapter for *_, adapter in rows]
        used = sorted({each for each in which if each >= 0})
        adapters = None
        if used:
            index = [used.index(each) if each >= 0 else -1 for each in which]
            adapters = BatchAdapters(tuple(self.held[each] for each in used), np.array(index))
        batch = Batch(
            tokens=np.array([token for tokens, *_ in rows for token in tokens]),
            tables=[np.arange(number * 8, number * 8 + 8) for _, _, number, _ in rows],
            starts=np.array([start for _, start, *_ in rows]),
            counts=np.array([len(tokens) for tokens, *_ in rows]),
            slots=[number for _, _, number, _ in rows],
            adapters=adapters,
        )
        with torch.inference_mode():
            found = self.forward.logits(batch, np.arange(len(batch.tokens)))
        counts = batch.counts.tolist() if len(found) else [0]  # A first stage has no logits.
        return list((found.cpu().clone() if wait else found).split(counts))


def words(seed: int, count: int) -> list[int]:
    """Tokens."""
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, count).tolist()


def check_logits(
    ours: Served, theirs: Served, steps: list[list[Row]], *, least: float
) -> list[list[torch.Tensor]]:
    """Returns the steps' logits on the CUDA kernels, which are the reference's, from captured steps
    among others. An adapter changes them by the share `least` or more."""
    found = [ours.logits(*step) for step in steps]
    true = [theirs.logits(*step) for step in steps]
    without = [theirs.logits(*((*row[:3], -1) for row in step)) for step in steps]
    for step, mine, wanted, bases in zip(steps, found, true, without, strict=True):
        close(mine, wanted)
        for row, own, base in zip(step, mine, bases, strict=True):
            assert row[3] < 0 or (own - base).abs().max() > least * base.abs().max()
    assert isinstance(ours.forward, TritonForward)
    assert ours.forward._graphs is not None
    assert len(ours.forward._graphs)
    return found


def close(found: list[torch.Tensor], wanted: list[torch.Tensor], rounding: float = 1e-4) -> None:
    for mine, true in zip(found, wanted, strict=True):
        assert (mine - true).abs().max() < rounding * true.abs().max()
