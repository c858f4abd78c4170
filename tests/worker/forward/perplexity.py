"""Perplexity of a text, by the worker's own forward pass and by transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import penstock_conversion
from penstock.prepare import load_manifest
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.interface import Batch, Forward
from testing.forward_pass import blocks_of, recipe_of, sequences_of

TEXT = Path(penstock_conversion.__file__).parent / "quantize" / "sample_text.txt"
LANGUAGES = Path(__file__).with_name("perplexity_languages.txt")
CHUNK = 256


def surprise(logits: Tensor, following: list[int]) -> float:
    """Sum of -log p of the following tokens, in float64. logits: [n, vocab]."""
    logprobs = torch.log_softmax(logits.double(), -1)
    return -float(logprobs[torch.arange(len(following)), torch.tensor(following)].sum())


@dataclass(frozen=True)
class Penstock:
    """A model on the CPU kernels. folder: a prepared model's. The others: as the flags of these
    names have them."""

    folder: Path
    dtype: str
    threads: int = 2
    kv_cache_dtype: str = "auto"
    matmul_precision: str = "medium"

    def negative_log_likelihood(self, tokens: list[int]) -> float:
        """Mean over all tokens but the first, in nats."""
        forward = self._forward(len(tokens))
        total = 0.0
        for start in range(0, len(tokens) - 1, CHUNK):
            end = min(start + CHUNK, len(tokens) - 1)
            logits = in_torch(
                forward.logits(_batch(tokens[start:end], start), np.arange(end - start))
            )
            total += surprise(logits, tokens[start + 1 : end + 1])
        return total / (len(tokens) - 1)

    def _forward(self, tokens: int) -> Forward:
        recipe = recipe_of(
            load_manifest(self.folder),
            self.threads,
            sequences=1,
            step_tokens=CHUNK,
            context=tokens,
            dtype=self.dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            matmul_precision=self.matmul_precision,
        )
        with torch.inference_mode():
            return recipe.build()(blocks_of(tokens))


def _batch(tokens: list[int], start: int) -> Batch:
    """One sequence, of which `start` tokens are computed."""
    return sequences_of(np.array(tokens), start=start)


@dataclass(frozen=True)
class Transformers:
    """A transformers model for causal language modelling, asked as Penstock is."""

    model: Any

    def negative_log_likelihood(self, tokens: list[int]) -> float:
        with torch.inference_mode():
            logits = self.model(torch.tensor([tokens])).logits[0, :-1]
        return surprise(logits, tokens[1:]) / (len(tokens) - 1)


Computer = Penstock | Transformers
"""One way to compute a model."""


def perplexity(computer: Computer, tokens: list[int]) -> float:
    return float(np.exp(computer.negative_log_likelihood(tokens)))
