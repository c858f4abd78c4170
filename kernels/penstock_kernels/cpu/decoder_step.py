"""What a step of the decoder computes, and what the library is given of it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from penstock_kernels.cpu.low_rank import NO_ADAPTED_ROWS, LowRankRows
from penstock_kernels.cpu.operands import Attention
from penstock_kernels.cpu.program import Program
from penstock_kernels.cpu.recurrent import StateMoves
from penstock_kernels.cpu.structs import PkBatch, PkStates


@dataclass(frozen=True, kw_only=True)
class GivenRows:
    """Numbers that are given for some rows of a step, in contiguous arrays."""

    rows: np.ndarray | None = None
    """[n] int32, each once: rows that have numbers of their own."""
    numbers: np.ndarray | None = None
    """[n, width] float32: what phases of kind TAKE_ROWS read of these rows."""
    turns: np.ndarray | None = None
    """[3, rows] int32: positions by which pairs turn that have axes; None: those of the tokens."""
    last_seen: np.ndarray | None = None
    """[rows] int32: the last position that each row sees, which may lie before its own; None: its
    own."""
    between: np.ndarray | None = None
    """[rows] uint8: 1 for rows that see none after themselves, whatever `last_seen` says, and that
    no row before them sees; None: there are none."""

    def check(
        self,
        positions: np.ndarray,
        ends: np.ndarray,
        width: int,
        angles: int | None,
        behind: int | None = None,
    ) -> None:
        """Raises ValueError for what the kernels would read or write beyond a step's memory.

        positions, ends: [rows], each row's position, and the number of its sequence's tokens after
        the step.
        width: numbers of a row that the program takes.
        angles: positions that the program's rotary tables have, by which pairs turn; None: none do.
        behind: how many earlier positions a row sees in every layer; None: all.
        """
        self._check_numbers(len(positions), width)
        self._check_turns(len(positions), angles)
        seen = self.last_seen
        if self.between is not None:
            _of_kind("between", self.between, np.uint8, (len(positions),))
        if seen is None:
            return
        _of_kind("last_seen", seen, np.int32, (len(positions),))
        # Of a sequence's rows, which follow one another, none sees less far than those before it.
        falls = (seen[1:] < seen[:-1]) & (positions[1:] == positions[:-1] + 1)
        nearest = 0 if behind is None else np.maximum(positions - behind, 0)
        if (
            (seen < nearest).any()
            or (seen >= ends).any()
            or (falls & (ends[1:] == ends[:-1])).any()
        ):
            raise ValueError("last_seen falls, or has positions that a row doesn't see")

    def _check_numbers(self, count: int, width: int) -> None:
        rows, numbers = self.rows, self.numbers
        if rows is None or numbers is None:
            if rows is not numbers:
                raise ValueError("rows and their numbers are given together")
            return
        _of_kind("rows", rows, np.int32, (len(numbers),))
        wide = numbers.shape[-1] if numbers.shape[-1] > width else width
        _of_kind("numbers", numbers, np.float32, (len(rows), wide))
        inside = not len(rows) or (rows.min() >= 0 and rows.max() < count)
        if not inside or len(np.unique(rows)) < len(rows):
            raise ValueError(f"rows are each once, of {count}")

    def _check_turns(self, count: int, angles: int | None) -> None:
        turns = self.turns
        if turns is None:
            return
        _of_kind("turns", turns, np.int32, (3, count))
        if angles is not None and (turns.min() < 0 or turns.max() >= angles):
            raise ValueError(
                f"turns go from {turns.min()} to {turns.max()}; the tables have {angles} positions"
            )


def _of_kind(name: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        wanted = f"contiguous {np.dtype(dtype)} of shape {shape}"
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}; {wanted} is needed")


NOTHING_GIVEN = GivenRows()


def _reach(attention: Attention) -> int | None:
    """Returns how far back a row sees at least; None: to the beginning."""
    if attention.chunk is not None:
        return 0
    return None if attention.window is None else attention.window - 1


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
        bounds = [_reach(each) for each in program.attentions]
        behind = min((each for each in bounds if each is not None), default=None)
        self.given.check(positions, ends, program.taken_numbers, program.angles, behind)


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
        batch.between = _data(given.between)

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
