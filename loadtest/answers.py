"""Perplexity and greedy answers of a model computed in several ways, for quality.py and the tests:
Penstock's backends by the worker's own forward pass, and transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loadtest.forward_pass import blocks_of, recipe_of, sequences_of
from penstock.prepare import load_manifest
from penstock_worker.forward.interface import Batch, Forward

TEXT = Path(__file__).with_name("quality_text.txt")
CHUNK = 256


def surprise(logits: Tensor, following: list[int]) -> float:
    """Sum of -log p of the following tokens, in float64. logits: [n, vocab]."""
    logprobs = torch.log_softmax(logits.double(), -1)
    return -float(logprobs[torch.arange(len(following)), torch.tensor(following)].sum())


@dataclass(frozen=True)
class Penstock:
    """By the CPU kernels. folder: of a prepared model.  The others: as the flags of these names
    have them."""

    folder: Path
    dtype: str
    threads: int = 2
    kv_cache_dtype: str = "auto"

    def negative_log_likelihood(self, tokens: list[int]) -> float:
        """Mean over all tokens but the first, in nats."""
        forward = self._forward(len(tokens))
        total = 0.0
        for start in range(0, len(tokens) - 1, CHUNK):
            end = min(start + CHUNK, len(tokens) - 1)
            logits = forward.logits(_batch(tokens[start:end], start), np.arange(end - start))
            total += surprise(logits, tokens[start + 1 : end + 1])
        return total / (len(tokens) - 1)

    def greedy(self, prompts: list[list[int]], wanted: int, end: set[int]) -> list[list[int]]:
        """Each prompt's answer, up to `wanted` tokens or an end token, which isn't in it.

        One at a time: the bits would be the same all at once.
        """
        forward = self._forward(max(map(len, prompts)) + wanted)
        return [self._answer(forward, prompt, wanted, end) for prompt in prompts]

    def _answer(self, forward: Forward, prompt: list[int], wanted: int, end: set[int]) -> list[int]:
        answer: list[int] = []
        given, start = prompt, 0
        while len(answer) < wanted:
            last = np.array([len(given) - 1])
            token = int(forward.logits(_batch(given, start), last)[0].argmax())
            if token in end:
                break
            answer.append(token)
            start += len(given)
            given = [token]
        return answer

    def _forward(self, tokens: int) -> Forward:
        recipe = recipe_of(
            load_manifest(self.folder),
            self.threads,
            sequences=1,
            step_tokens=CHUNK,
            context=tokens,
            dtype=self.dtype,
            kv_cache_dtype=self.kv_cache_dtype,
        )
        with torch.inference_mode():
            return recipe.build()(blocks_of(tokens))


def _batch(tokens: list[int], start: int) -> Batch:
    """One sequence, of which `start` tokens are computed."""
    return sequences_of(np.array(tokens), start=start)


@dataclass(frozen=True)
class Transformers:
    """The same by a transformers model for causal language modelling."""

    model: Any

    def negative_log_likelihood(self, tokens: list[int]) -> float:
        with torch.inference_mode():
            logits = self.model(torch.tensor([tokens])).logits[0, :-1]
        return surprise(logits, tokens[1:]) / (len(tokens) - 1)

    def greedy(self, prompts: list[list[int]], wanted: int, end: set[int]) -> list[list[int]]:
        answers = []
        for prompt in prompts:
            given = torch.tensor([prompt])
            out = self.model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=wanted,
                do_sample=False,
                eos_token_id=sorted(end),
                pad_token_id=min(end),
            )
            answer = out[0, len(prompt) :].tolist()
            answers.append(answer[:-1] if answer and answer[-1] in end else answer)
        return answers


def from_gguf(file: Path) -> Transformers:
    """transformers' own reading of a GGUF file, dequantised to float32."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    )
    return Transformers(model.eval())


Computer = Penstock | Transformers
"""One way to compute a model."""


def perplexity(computer: Computer, tokens: list[int]) -> float:
    return float(np.exp(computer.negative_log_likelihood(tokens)))
