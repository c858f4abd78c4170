"""llama.cpp's half, in its environment.

`python llamacpp.py quantize SOURCE OUTPUT FILE_TYPE THREADS [IMPORTANCES.npz]` writes a file.
`python llamacpp.py read MODEL THREADS COUNT` reads lists of token ids as JSON, `texts` and
`prompts`: writes the log-probability of each token of the texts but the first, and COUNT likeliest
tokens behind each prompt.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

import llama_cpp as c
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "same_scores"))
from llamacpp_batches import scored


def quantize(source: str, output: str, file_type: int, threads: int, importances: str) -> None:
    """Writes the processor seconds that it took."""
    params = c.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = file_type, threads, True
    kept = []
    if importances:
        found = np.load(importances)
        entries = (c.llama_model_imatrix_data * (len(found.files) + 1))()
        for entry, name in zip(entries, found.files, strict=False):
            values = np.ascontiguousarray(found[name], np.float32)
            kept.append(values)
            entry.name = name.encode()
            entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            entry.size = values.size
        params.imatrix = entries
    begun = time.process_time()
    if c.llama_model_quantize(source.encode(), output.encode(), ctypes.byref(params)):
        raise RuntimeError("llama_model_quantize failed")
    json.dump({"cpu_seconds": time.process_time() - begun}, sys.stdout)


def read(model: str, threads: int, count: int) -> None:
    """Matrices stay as the file has them: repacked for AMX, this release ends in an illegal
    instruction on some machines."""
    given = json.load(sys.stdin)
    params = c.llama_model_default_params()
    params.use_extra_bufts = False
    loaded = c.llama_model_load_from_file(model.encode(), params)
    if not loaded:
        raise RuntimeError(f"llama.cpp can't load {model}")
    logprobs = [scored(loaded, [text], threads)[0] for text in given["texts"]]
    tokens = [greedy(loaded, prompt, threads, count) for prompt in given["prompts"]]
    json.dump({"logprobs": logprobs, "tokens": tokens}, sys.stdout)


def greedy(loaded: object, prompt: list[int], threads: int, count: int) -> list[int]:
    params = c.llama_context_default_params()
    params.n_ctx = len(prompt) + count + 32
    params.n_threads = params.n_threads_batch = threads
    context = c.llama_init_from_model(loaded, params)
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(loaded))
    found: list[int] = []
    following = list(prompt)
    for _ in range(count):
        batch = (c.llama_token * len(following))(*following)
        if c.llama_decode(context, c.llama_batch_get_one(batch, len(following))):
            raise RuntimeError("llama_decode failed")
        logits = np.ctypeslib.as_array(c.llama_get_logits_ith(context, -1), (vocabulary,))
        following = [int(logits.argmax())]
        found += following
    c.llama_free(context)
    return found


if __name__ == "__main__":
    c.llama_backend_init()
    if sys.argv[1] == "quantize":
        source, output, file_type, threads, *more = sys.argv[2:]
        quantize(source, output, int(file_type), int(threads), more[0] if more else "")
    else:
        read(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
