"""The forward pass of the CPU backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate

import numpy as np

from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import DecoderStep
from penstock_worker.batch.block_tables import joined_tables
from penstock_worker.forward.cpu.adapters import adapted_rows
from penstock_worker.forward.cpu.aux_hidden import CPUAuxHidden
from penstock_worker.forward.cpu.media import given_rows
from penstock_worker.forward.cpu.split import CPUStageEnds
from penstock_worker.forward.interface import Batch, StepCancelled
from penstock_worker.states.program_states import ProgramStates


class RunsProgram:
    """What computes steps of a program."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @property
    def layers_done(self) -> int:
        return self._decoder.layers_done

    def cancel(self) -> None:
        self._decoder.cancel()

    def count_layer(self) -> None:
        """Counts a layer that isn't one of the program's. Raises StepCancelled."""
        self._decoder.count_layer()
        if self._decoder.cancelled:
            raise StepCancelled


class CPUForward(RunsProgram):
    """Adapts a Decoder to the interface `Forward`."""

    def __init__(
        self,
        decoder: Decoder,
        join_logits: Callable[[np.ndarray], None] | None = None,
        ends: CPUStageEnds | None = None,
        states: ProgramStates | None = None,
        aux_hidden: CPUAuxHidden | None = None,
    ) -> None:
        """`join_logits` completes logits by the columns that other ranks have computed. `ends`:
        those of a pipeline stage. `states`: those of recurrent layers. `aux_hidden`: what keeps the
        residuals of a step."""
        super().__init__(decoder)
        self._join_logits = join_logits
        self._ends = ends
        self._states = states
        self._aux_hidden = aux_hidden

    @property
    def decoder(self) -> Decoder:
        """What computes the steps, for those who measure it."""
        return self._decoder

    def kv_blocks(self) -> list[np.ndarray]:
        return self._decoder.kv_blocks()

    def logits(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        if self._ends is not None:
            self._ends.receive(len(batch.tokens))
            if not self._ends.ranks.place.last:
                rows = rows[:0]
        logits = self._computed(self._decoder.logits, batch, rows)
        if self._join_logits is not None and len(rows):
            self._join_logits(logits)
        return logits

    @property
    def finds_likeliest(self) -> bool:
        """Whether `likeliest` can be used: not if each rank has only some of the logits."""
        return self._join_logits is None and self._ends is None

    def likeliest(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        return self._computed(self._decoder.likeliest, batch, rows)

    def _computed(
        self, of: Callable[[DecoderStep, np.ndarray], np.ndarray], batch: Batch, rows: np.ndarray
    ) -> np.ndarray:
        step = step_of(batch)
        with nullcontext() if self._states is None else self._states.moved_on(batch) as states:
            if states is not None:
                step = replace(step, states=states)
            found = of(step, _int32(rows))
            if self._decoder.cancelled:
                raise StepCancelled
        if self._aux_hidden is not None:
            self._aux_hidden.keep()
        return found


def step_of(batch: Batch) -> DecoderStep:
    """Returns what the kernels get of a batch. Its tables may be those of the batch: it must be
    computed before the next plan is applied."""
    tables, widths = joined_tables((batch.tables, *batch.more_tables))
    return DecoderStep(
        tokens=_int32(batch.tokens),
        first_row=_firsts(batch.counts.tolist()),
        starts=_int32(batch.starts),
        tables=_int32(tables),
        first_block=_firsts(widths)[:-1],
        given=given_rows(batch.media),
        adapted=adapted_rows(batch.adapters, batch.counts),
    )


def _firsts(counts: list[int]) -> np.ndarray:
    """[counts + 1] int32: where each begins if they follow one another, and where the last ends."""
    return np.array([*accumulate(counts, initial=0)], dtype=np.int32)


def _int32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)
