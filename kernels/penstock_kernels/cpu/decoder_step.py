"""What a step of the decoder computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock_kernels.cpu.given_rows import NOTHING_GIVEN, GivenRows
from penstock_kernels.cpu.low_rank import NO_ADAPTED_ROWS, LowRankRows
from penstock_kernels.cpu.program import Program
from penstock_kernels.cpu.recurrent import StateMoves


@dataclass(frozen=True)
class DecoderStep:
    """The input of one step; rows are ordered by sequence. All arrays are int32 and contiguous."""

    tokens: np.ndarray
    """Token id of each row, [rows]."""
    first_row: np.ndarray
    """[sequences + 1]: the first row of each sequence, then the number of rows."""
    starts: np.ndarray
    """[sequences]: tokens computed before."""
    tables: np.ndarray
    """KV blocks of all sequences, one sequence after another; then, if layers are in several groups
    (see Attention), those of the next group."""
    first_block: np.ndarray
    """[groups * sequences]: where the blocks of each sequence begin in `tables`."""
    types: np.ndarray | None = None
    """[rows]: of an encoder with token types; None: all 0."""
    states: StateMoves | None = None
    """Moves of the same sequences' states, for a program with recurrent layers."""
    given: GivenRows = NOTHING_GIVEN
    """Rows that aren't as their tokens say."""
    adapted: LowRankRows = NO_ADAPTED_ROWS
    """Rows that have adapters."""

    def check_given(self, program: Program) -> None:
        """Raises ValueError for given rows that the program can't compute."""
        if self.given is NOTHING_GIVEN:
            return
        counts = np.diff(self.first_row)
        positions = np.arange(len(self.tokens)) - np.repeat(
            self.first_row[:-1] - self.starts, counts
        )
        ends = np.repeat(self.starts + counts, counts)
        self.given.check(positions, ends, program.taken_numbers, program.angles)
