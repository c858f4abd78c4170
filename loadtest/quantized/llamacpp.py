"""llama.cpp's half, in its environment.

`python llamacpp.py quantize SOURCE OUTPUT FILE_TYPE THREADS [IMPORTANCES.npz]` writes a file.
`python llamacpp.py greedy MODEL THREADS COUNT` reads a list of prompts, each a list of token ids,
as JSON and writes COUNT likeliest tokens behind each.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

import llama_cpp as c
import numpy as np


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


def greedy(model: str, threads: int, count: int) -> None:
    prompts = json.load(sys.stdin)
    loaded = c.Llama(model, n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False)
    found = []
    for prompt in prompts:
        loaded.reset()
        made = loaded.generate(prompt, temp=0.0, repeat_penalty=1.0)
        found.append([token for token, _ in zip(made, range(count), strict=False)])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    c.llama_backend_init()
    if sys.argv[1] == "quantize":
        source, output, file_type, threads, *more = sys.argv[2:]
        quantize(source, output, int(file_type), int(threads), more[0] if more else "")
    else:
        greedy(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
