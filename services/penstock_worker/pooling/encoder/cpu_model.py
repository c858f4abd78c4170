"""Encoders on the CPU kernels: one call into the C++ library computes a group of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from penstock.model.config import EncoderConfig
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import DecoderStep
from penstock_kernels.cpu.program import Program
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.forward.cpu.adapters import adapted_rows
from penstock_worker.forward.interface import StepCancelled
from penstock_worker.pooling.bodies import Inputs

GROUP_ROWS = 128
"""Tokens that are computed together, so that what a layer makes of them stays in the second level
of the cache, and weights are read once for all of them. A longer input is a group of its own."""
BLOCK = 16
"""Tokens of a block of the memory for keys and values."""


class CPUEncoder:
    """An Encoder, but not for several threads at once: it has threads of its own."""

    def __init__(
        self, config: EncoderConfig, program: Program, *, longest: int, threads: int
    ) -> None:
        """`longest`: tokens that an input may have."""
        self.config = config
        self._longest = longest
        blocks = -(-longest // BLOCK) + GROUP_ROWS
        self._decoder = Decoder(program, BLOCK, blocks, cache="float32", threads=threads)

    @property
    def layers_done(self) -> int:
        return self._decoder.layers_done

    def cancel(self) -> None:
        self._decoder.cancel()

    def count_layer(self) -> None:
        """Counts a layer that was computed beside the program's. Raises StepCancelled."""
        self._decoder.count_layer()
        if self._decoder.cancelled:
            raise StepCancelled

    def rows(self, inputs: Inputs, adapters: BatchAdapters | None = None) -> Tensor:
        tokens, types, lengths = inputs.tokens, inputs.types, inputs.lengths
        if max(lengths) > self._longest:
            raise ValueError(f"an input has {max(lengths)} tokens; at most {self._longest} may be")
        out, start, first = [], 0, 0
        for group in _groups(lengths):
            rows = slice(start, start + sum(group))
            own = None
            if adapters is not None:
                of_group = adapters.of_sequence[first : first + len(group)]
                own = replace(adapters, of_sequence=of_group)
            out.append(self._group(tokens[rows], types[rows], group, own))
            start, first = rows.stop, first + len(group)
        return torch.from_numpy(np.concatenate(out))

    def _group(
        self,
        tokens: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        adapters: BatchAdapters | None,
    ) -> np.ndarray:
        ends = np.cumsum([0, *lengths])
        blocks = np.cumsum([0, *(-(-length // BLOCK) for length in lengths)])
        step = DecoderStep(
            tokens=_int32(tokens),
            first_row=_int32(ends),
            starts=np.zeros(len(lengths), dtype=np.int32),
            tables=np.arange(blocks[-1], dtype=np.int32),
            first_block=_int32(blocks[:-1]),
            types=_int32(types) if self.config.token_types else None,
            adapted=adapted_rows(adapters, np.array(lengths)),
        )
        rows = self._decoder.logits(step, np.arange(len(tokens), dtype=np.int32))
        if self._decoder.cancelled:
            raise StepCancelled
        return rows


def _groups(lengths: list[int]) -> Iterator[list[int]]:
    """Cuts inputs into groups of at most GROUP_ROWS tokens, or of one input."""
    group: list[int] = []
    for length in lengths:
        if group and sum(group) + length > GROUP_ROWS:
            yield group
            group = []
        group.append(length)
    if group:
        yield group


def _int32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)
