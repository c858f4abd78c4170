"""llama.cpp's half, in its environment: `python llamacpp.py MODEL THREADS CONTEXT COUNT`.

Reads lists of token ids as JSON, one after the other, and writes for each a line: COUNT likeliest
tokens behind it, and the seconds until the first of them.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import llama_cpp as c
import numpy as np

BATCH = 512
"""Tokens of a call, as llama.cpp's own server has it."""


def main(model: str, threads: int, context: int, count: int) -> None:
    c.llama_backend_init()
    params = c.llama_model_default_params()
    # Repacked for AMX, some releases end in an illegal instruction on some machines.
    params.use_extra_bufts = False
    loaded = c.llama_model_load_from_file(model.encode(), params)
    if not loaded:
        raise RuntimeError(f"llama.cpp can't load {model}")
    for line in sys.stdin:
        answer = continued(loaded, json.loads(line), threads, context, count)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({**answer, "memory": memory}), flush=True)


def continued(
    loaded: object, prompt: list[int], threads: int, size: int, count: int
) -> dict[str, object]:
    """The likeliest tokens, each after the ones before."""
    params = c.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = size, BATCH, BATCH
    params.n_threads = params.n_threads_batch = threads
    context = c.llama_init_from_model(loaded, params)
    if not context:
        raise RuntimeError("llama.cpp makes no context")
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(loaded))
    begun, first, found, following = time.monotonic(), 0.0, list[int](), list(prompt)
    for _ in range(count):
        for start in range(0, len(following), BATCH):
            part = following[start : start + BATCH]
            tokens = (c.llama_token * len(part))(*part)  # A batch only points to them.
            if c.llama_decode(context, c.llama_batch_get_one(tokens, len(part))):
                raise RuntimeError("llama_decode failed")
        logits = np.ctypeslib.as_array(c.llama_get_logits_ith(context, -1), (vocabulary,))
        following = [int(logits.argmax())]
        first = first or time.monotonic() - begun
        found += following
    c.llama_free(context)
    return {"tokens": found, "first": first}


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
