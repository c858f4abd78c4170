"""What the library is given of a step: a struct that is used again, and of which a step writes what
is its own."""

from __future__ import annotations

import ctypes

import numpy as np

from penstock_kernels.cpu.decoder_step import DecoderStep
from penstock_kernels.cpu.program import Program
from penstock_kernels.cpu.structs import PkBatch, PkStates


class StepArguments:
    """The arguments of a step in the library's structs, for one step at a time."""

    def __init__(
        self, program: Program, layers_done: np.ndarray, cancelled: np.ndarray, lost: np.ndarray
    ) -> None:
        """The arrays, of one number each, are the library's to read and write in every step:
        layers_done and lost [1] int64, cancelled [1] int32."""
        self._program = program
        self._always = layers_done, cancelled, lost
        self.struct = PkBatch(
            layers_done=layers_done.ctypes.data,
            cancelled=cancelled.ctypes.data,
            lost=lost.ctypes.data,
        )

    def describe(
        self, step: DecoderStep, rows: np.ndarray, out: np.ndarray, threads: int
    ) -> object:
        """Writes a step, whose arrays must live until it has been computed, to `struct`. `rows` as
        in Decoder.logits; `out` is what that returns, or what Decoder.likeliest does. Returns what
        must live as long. Raises ValueError for states of another size or of other sequences, and
        for adapted rows that don't fit."""
        states, adapted = self._states(step), step.adapted
        runs, run_of = None, None
        if adapted.runs:
            runs, run_of = adapted.arrays(len(step.tokens), self._program.low_rank)
        batch = self.struct
        batch.rows, batch.sequences = len(step.tokens), len(step.starts)
        batch.num_wanted, batch.threads = len(rows), threads
        batch.tokens = step.tokens.ctypes.data
        batch.first_row = step.first_row.ctypes.data
        batch.starts = step.starts.ctypes.data
        batch.tables = step.tables.ctypes.data
        batch.first_block = step.first_block.ctypes.data
        batch.wanted = rows.ctypes.data
        batch.types = _data(step.types)
        batch.logits, batch.likeliest = None, None
        if out.dtype == np.int32:
            batch.likeliest = out.ctypes.data
        else:
            batch.logits = out.ctypes.data
        batch.states = None if states is None else ctypes.pointer(states)
        batch.num_runs = len(adapted.runs)
        batch.runs = None if runs is None else ctypes.addressof(runs)
        batch.run_of = _data(run_of)
        self._give(step)
        return states, runs, run_of

    def _give(self, step: DecoderStep) -> None:
        batch, given = self.struct, step.given
        batch.num_taken = 0 if given.rows is None else len(given.rows)
        batch.taken_width = 0 if given.numbers is None else given.numbers.shape[1]
        batch.taken_rows, batch.taken = _data(given.rows), _data(given.numbers)
        batch.turns, batch.last_seen = _data(given.turns), _data(given.last_seen)

    def _states(self, step: DecoderStep) -> PkStates | None:
        """Raises ValueError for states of another size, or of other sequences."""
        program = self._program
        if not program.last_numbers:
            return None
        states = step.states
        if states is None or len(states.slots) != len(step.starts):
            raise ValueError("a step of a program with recurrent layers says its sequences' states")
        states.memory.check(program.state_numbers, program.last_numbers)
        room = states.blocks.shape[1] * int(states.memory.part_bytes.sum())
        if len(states.blocks) and room < 4 * program.state_numbers:
            raise ValueError(
                f"a checkpoint of {4 * program.state_numbers} bytes has blocks of {room}"
            )
        return states.struct()


def _data(array: np.ndarray | None) -> int | None:
    return None if array is None else int(array.ctypes.data)
