"""What steps of so many rows take, on this machine:

    PENSTOCK_CPU_ISA=avx2 python -m loadtest.drafting.curve MODEL THREADS

The worker's forward pass on the CPU kernels by itself, sequences at contexts of 256 tokens. Of some
steps of each size the shortest one counts, which says what the machine can do while it does nothing
else. Writes a JSON object to stdout: seconds by rows, and the instruction set.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from bisect import bisect_left
from collections.abc import Mapping

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # As the worker has it.

import torch

from loadtest.adapters import decode_batch, recipe_for, step_seconds
from loadtest.forward_pass import blocks_of
from penstock.prepare import load_manifest, prepare
from penstock_kernels.cpu.library import instruction_set

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
ROUNDS = 7
CONTEXT = 256


def main(model: str, threads: int) -> None:
    flags = argparse.Namespace(dtype="auto", streams=ROWS[-1], context=CONTEXT, adapters=0)
    prepared = load_manifest(prepare(model))
    with torch.inference_mode():
        forward = recipe_for(flags, prepared, threads).build()(ROWS[-1] * blocks_of(CONTEXT + 1))
    found = dict.fromkeys(ROWS, float("inf"))
    for _ in range(ROUNDS):
        for rows in ROWS:
            flags.streams = rows
            found[rows] = min(found[rows], step_seconds(forward, decode_batch(flags, []), 1))
    print(json.dumps({"isa": instruction_set(), "seconds": found}))


class Curve:
    """Straight lines through what was measured, on beyond the last as between the last two."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self._rows = sorted(seconds)
        self._seconds = [seconds[rows] for rows in self._rows]

    def __call__(self, rows: int) -> float:
        at = min(max(bisect_left(self._rows, rows), 1), len(self._rows) - 1)
        left, right = self._rows[at - 1], self._rows[at]
        first, second = self._seconds[at - 1], self._seconds[at]
        return first + (second - first) * (rows - left) / (right - left)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
