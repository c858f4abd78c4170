"""Log-probabilities of prompts' tokens by llama.cpp, so many prompts in a batch, as its own server
batches them: `python llamacpp_batches.py MODEL THREADS AT_ONCE`, in the environment of llama.cpp.

Reads a list of prompts, each a list of token ids, as JSON, and writes for each the log-probability
of every token but the first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import llama_cpp as c
import numpy as np

BATCH = 512
"""Tokens of a call, as llama.cpp's own server has it."""

Row = tuple[int, int, int]
"""Token, position, sequence."""


def main(model: str, threads: int, at_once: int) -> None:
    prompts = json.load(sys.stdin)
    c.llama_backend_init()
    loaded = c.llama_model_load_from_file(model.encode(), c.llama_model_default_params())
    if not loaded:
        raise RuntimeError(f"llama.cpp can't load {model}")
    found = []
    for start in range(0, len(prompts), at_once):
        found += scored(loaded, prompts[start : start + at_once], threads)
    json.dump(found, sys.stdout)


def scored(loaded: object, prompts: list[list[int]], threads: int) -> list[list[float]]:
    """The prompts as sequences of one context."""
    params = c.llama_context_default_params()
    params.n_ctx = len(prompts) * (max(map(len, prompts)) + 32)
    params.n_seq_max, params.n_batch = len(prompts), BATCH
    params.n_threads = params.n_threads_batch = threads
    context = c.llama_init_from_model(loaded, params)
    if not context:
        raise RuntimeError("llama.cpp makes no context")
    batch = c.llama_batch_init(BATCH, 0, 1)
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(loaded))
    found: list[list[float]] = [[] for _ in prompts]
    for rows in batches(prompts):
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if c.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        for i, (_, position, sequence) in enumerate(rows):
            following = prompts[sequence][position + 1 : position + 2]
            pointer = c.llama_get_logits_ith(context, i)
            logits = np.ctypeslib.as_array(pointer, (vocabulary,)).astype(np.float64)
            total = np.log(np.exp(logits - logits.max()).sum()) + logits.max()
            found[sequence] += [float(np.float32(logits[token] - total)) for token in following]
    c.llama_batch_free(batch)
    c.llama_free(context)
    return found


def batches(prompts: list[list[int]]) -> Iterator[list[Row]]:
    rows = [
        (token, position, sequence)
        for sequence, ids in enumerate(prompts)
        for position, token in enumerate(ids)
    ]
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
