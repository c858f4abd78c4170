"""Takes the most likely token of each row: what `sampler.sample` does where nothing else is asked.

A decode step of one sequence takes two or three milliseconds. So what the library reads is
described once, and of a step only the address of its logits is written.
"""

from __future__ import annotations

import ctypes

import numpy as np

from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.memory import Scratch
from penstock_kernels.cpu.sampler import DRAW, NO_LOGPROBS, NOT_ADJUSTED, NOT_GIVEN
from penstock_kernels.cpu.structs import PkSampling


class Likeliest:
    """Finds the most likely tokens, for one caller at a time; its memory grows with the number of
    rows."""

    def __init__(self, threads: int = 1) -> None:
        """Raises ValueError for less than one thread, ImportError without the library."""
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self._library = load()
        self._scratch = Scratch()
        self._shape = (0, 0)
        self._work = 0
        # Nothing is written to what isn't asked for, and nothing read of what no row has.
        self._none = np.zeros(1, np.int64)
        none = self._none.ctypes.data
        self._batch = PkSampling(
            threads=threads, held_back=none, logprobs=none, top_ids=none, top_logprobs=none
        )
        self._reference = ctypes.byref(self._batch)
        self._make_room(1)

    def tokens(self, logits: np.ndarray) -> list[int]:
        """Returns for each row the id of its largest logit, of equal ones the lowest; -1 for a row
        with a logit that is not finite. `logits` is [rows, vocab] float32, and is not modified.

        Raises ValueError for logits of another shape.
        """
        logits = np.ascontiguousarray(logits, dtype=np.float32)
        if logits.ndim != 2 or logits.shape[1] < 1:
            raise ValueError(f"logits have shape {logits.shape}; (rows, vocab) is needed")
        rows = len(logits)
        if not rows:
            return []
        if logits.shape != self._shape:
            self._describe(*logits.shape)
        self._batch.logits = logits.ctypes.data
        self._library.pk_sample(self._reference, self._work)
        return self._tokens[:rows].tolist()

    def _describe(self, rows: int, vocab: int) -> None:
        if rows > len(self._tokens):
            self._make_room(1 << (rows - 1).bit_length())
        self._batch.rows, self._batch.vocab = rows, vocab
        self._work = self._scratch.at_least(self._library.pk_sample_bytes(self._reference))
        self._shape = rows, vocab

    def _make_room(self, rows: int) -> None:
        self._tokens = np.empty(rows, np.int32)
        self._draws = np.zeros(rows, DRAW)
        self._draws["top_p"] = 1.0
        self._draws["logprobs"] = NO_LOGPROBS
        self._draws["given"] = NOT_GIVEN
        self._draws["edit"] = NOT_ADJUSTED
        self._batch.tokens = self._tokens.ctypes.data
        self._batch.draws = self._draws.ctypes.data
