"""Embeddings of tokens that a head doesn't predict. Molmo 2's files have them by themselves: they
follow the others. The head gets rows of zeros and a bias for them, with which they are never
likely."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from penstock.errors import UnsupportedModel
from penstock.model.config import ModelConfig
from penstock_worker.quantisation.interface import BF16, F16, F32
from penstock_worker.weights.stored import StoredTensor

FURTHER = "embed_tokens.further"
"""Our name of these embeddings."""
UNLIKELY = -1e30
"""The logit of such tokens: a finite number, of which no probability is left."""
PLAIN = (F32.name, BF16.name, F16.name)
_EMBEDDING, _HEAD, _BIAS = "embed_tokens.weight", "lm_head.weight", "lm_head.bias"


def add_further_tokens(tensors: dict[str, StoredTensor], config: ModelConfig) -> None:
    """Puts both parts of an embedding together, by our names. Modifies `tensors`. Raises
    UnsupportedModel for parts that don't fit each other, or are quantised."""
    further = tensors.pop(FURTHER, None)
    embedding, head = tensors.get(_EMBEDDING), tensors.get(_HEAD)
    if further is None:
        whole = embedding is not None and embedding.shape[:1] == (config.vocab_size,)
        if config.head_bias and _BIAS not in tensors and whole and head is not None:
            _fill_head(tensors, config, head)
        return
    if embedding is None or head is None:
        missing = _EMBEDDING if embedding is None else _HEAD
        raise UnsupportedModel(f"the checkpoint has {further.name}, and lacks {missing}")
    count = further.shape[0] if further.shape else 0
    own = config.vocab_size - count
    for part, rows in ((embedding, own), (further, count), (head, own)):
        _check(part, rows, config.hidden_size)
    if further.format != embedding.format:
        raise UnsupportedModel(
            f"tensor {further.name} is stored as {further.format}, and {embedding.name} as "
            f"{embedding.format}; the same is needed"
        )
    shape = (config.vocab_size, config.hidden_size)
    tensors[_EMBEDDING] = replace(embedding, shape=shape, made=partial(_both, further))
    _fill_head(tensors, config, head)


def _fill_head(tensors: dict[str, StoredTensor], config: ModelConfig, head: StoredTensor) -> None:
    """Gives the head rows, and a bias, for the tokens that it doesn't predict. Those of Llama 3.2
    Vision, which are 8, stand in the embedding already."""
    own = head.shape[0] if head.shape else 0
    if not 0 < own < config.vocab_size:
        return
    _check(head, own, config.hidden_size)
    shape = (config.vocab_size, config.hidden_size)
    size = len(head.data.reshape(-1)) // own * (config.vocab_size - own)
    tensors[_HEAD] = replace(head, shape=shape, made=partial(_with_zeros, size))
    bias = np.zeros(config.vocab_size, np.float32)
    bias[own:] = UNLIKELY
    tensors[_BIAS] = StoredTensor(_BIAS, bias.shape, F32.name, bias.view(np.uint8))


def _check(part: StoredTensor, rows: int, columns: int) -> None:
    if part.shape != (rows, columns) or part.format not in PLAIN or part.made is not None:
        raise UnsupportedModel(
            f"tensor {part.name} has shape {part.shape} in the format {part.format}; "
            f"{rows} x {columns} numbers in one of {', '.join(PLAIN)} are needed, beside "
            "embeddings of further tokens"
        )


def _both(further: StoredTensor, data: np.ndarray) -> np.ndarray:
    return np.concatenate((data.reshape(-1), further.content.reshape(-1)))


def _with_zeros(size: int, data: np.ndarray) -> np.ndarray:
    """size: bytes of the rows of zeros."""
    return np.concatenate((data.reshape(-1), np.zeros(size, np.uint8)))
