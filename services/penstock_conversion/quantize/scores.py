"""How surprised a model is by a text, as it would be served on this machine's CPU."""

from __future__ import annotations

import gc
import math
from pathlib import Path

import numpy as np
import torch

from penstock.model.prepared_model import PreparedModel
from penstock.prepare import load_manifest
from penstock.prepare.folder import TOKENIZER
from penstock.protocol.to_worker import Setup
from penstock.text.tokenizer import Tokenizer
from penstock_worker.batch.inputs import Batch
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Forward, Recipe

WINDOW = 512
"""Tokens that are computed together, each window by itself."""
CHUNK = 128
"""Tokens whose logits are in memory at a time."""
_BLOCK = 16


def token_ids(folder: Path, text: str, most: int) -> list[int]:
    """A text's tokens, `most` of them at most. folder: a prepared model's."""
    manifest = load_manifest(folder)
    tokenizer = Tokenizer.from_bytes(
        (folder / TOKENIZER).read_bytes(),
        add_bos=manifest.add_bos,
        bos_token_id=manifest.generation.bos_token_id,
    )
    return tokenizer.encode(text)[:most]


def windows(tokens: list[int], longest: int) -> list[list[int]]:
    """The tokens in windows of at least 2, the last one shorter."""
    size = min(WINDOW, longest)
    found = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    return [each for each in found if len(each) > 1]


def log_probabilities(folder: Path, tokens: list[int], threads: int) -> np.ndarray:
    """The logarithm of the probability of each token but the first of each window, float64.

    folder: a prepared model's. Raises StartupError where no backend can compute it.
    """
    prepared = load_manifest(folder)
    parts = windows(tokens, prepared.decoder.max_position)
    recipe = choose(prepared, _setup(prepared, threads), threads)
    blocks = -(-WINDOW // _BLOCK)
    own = 0 if recipe.states is None else recipe.states.own_blocks
    found = []
    with torch.inference_mode():
        forward = recipe.build()(blocks * max(1, len(recipe.kv_groups)) + own)
        for part in parts:
            found += _of_window(forward, recipe, part, blocks)
    del forward, recipe
    gc.collect()
    return np.concatenate(found)


def _of_window(forward: Forward, recipe: Recipe, part: list[int], blocks: int) -> list[np.ndarray]:
    tables = [
        np.arange(number * blocks, (number + 1) * blocks)
        for number in range(max(1, len(recipe.kv_groups)))
    ]
    found = []
    for start in range(0, len(part) - 1, CHUNK):
        own = part[start : min(start + CHUNK, len(part) - 1)]
        batch = Batch(
            tokens=np.array(own),
            tables=tables[:1],
            starts=np.array([start]),
            counts=np.array([len(own)]),
            more_tables=tuple([each] for each in tables[1:]),
            slots=(0,),
        )
        logits = in_torch(forward.logits(batch, np.arange(len(own))))
        following = torch.tensor(part[start + 1 : start + 1 + len(own)])
        logits = torch.log_softmax(logits.double(), -1)
        found.append(logits.gather(1, following[:, None])[:, 0].numpy())
    return found


def _setup(prepared: PreparedModel, threads: int) -> Setup:
    return Setup(
        version=1,
        model_dir="",
        dtype="auto",
        device="cpu",
        attention_backend="auto",
        threads=threads,
        block_size=_BLOCK,
        num_kv_blocks=None,
        kv_memory_fraction=0.4,
        max_num_seqs=1,
        max_num_batched_tokens=CHUNK,
        max_model_len=min(WINDOW, prepared.decoder.max_position),
    )


def perplexity(logprobs: np.ndarray) -> float:
    """The exponential of the mean surprise."""
    return math.exp(-float(logprobs.mean()))


def change(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Returns the share by which the perplexity is higher, and its standard error, as if the
    tokens' differences were independent."""
    more = before - after
    mean = float(more.mean())
    error = float(more.std(ddof=1)) / math.sqrt(len(more)) if len(more) > 1 else 0.0
    return math.expm1(mean), math.exp(mean) * error
