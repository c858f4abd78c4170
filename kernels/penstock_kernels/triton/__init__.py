"""The CUDA kernels, in Triton.

Promise: as in `reference`, a row's result is a function of that row alone, as long as the tiles
(`tiles.py`, `matmul_tiles.py`) stay the same. With `batch_invariant`, the number of rows chooses
among tiles of equal bits only; nothing is tuned while serving. How each operation keeps it:

- a row (or a head of one) is reduced by one program, as a whole, with one block shape: norms,
  sampling, log-probabilities, FP8 scales;
- matrix products go through K in order, tile by tile (`linear/`); only `gguf_linear` splits K if
  there are few rows, into fixed parts that are added in order; a row's position in its tile doesn't
  matter to a tensor core;
- attention reduces keys in fixed splits by token position, each in fixed tiles, and combines splits
  in order with explicit fused multiply-adds, in decode and prefill alike (`attention/paged.py`);
- an encoder's input is attended to by programs that each go through its keys, and pooled by
  programs that each go through its rows, in fixed tiles from its first token on
  (`attention/encoder.py`, `rowwise/pool_rows.py`);
- no float is ever added atomically.

Unless its docstring says otherwise, every operation takes tensors on one CUDA device, launches on
the current stream, never waits for the device, and reads none of its values on the host, so that
CUDA graphs can capture it. With TRITON_INTERPRET=1 in the environment before triton is imported,
the same code runs on CPU tensors in Triton's interpreter: slow, for tests (`rounding.py` has the
few lines that differ). Importing this package needs triton but no CUDA.
"""
