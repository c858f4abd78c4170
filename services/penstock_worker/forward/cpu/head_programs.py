"""The programs of heads that draft."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import DecoderStep
from penstock_kernels.cpu.given_rows import GivenRows
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.program import Buffer, NormWeights, Phase, PhaseKind, Program
from penstock_worker.forward.cpu.gates import forms_of, product_into
from penstock_worker.forward.cpu.program import rows_phase


@dataclass(frozen=True)
class JoinedEntry:
    """What stands before the layer of an MTP head: a product of the embedding and of the hidden
    state, each normed by itself."""

    width: int
    embedding: PackedMatrix
    embedding_norm: NormWeights
    hidden_norm: NormWeights
    of_embedding: PackedMatrix
    """The product's columns that multiply the embedding."""
    of_hidden: PackedMatrix

    def begin(self) -> Iterator[Phase]:
        yield Phase(kind=PhaseKind.EMBED, matrices=(self.embedding,))
        yield _input(self.of_embedding, Buffer.RESIDUAL, self.width, self.embedding_norm)
        yield product_into(self.of_embedding, Buffer.RESIDUAL)
        yield _given(Buffer.MIXED, 0, self.width)
        yield _input(self.of_hidden, Buffer.MIXED, self.width, self.hidden_norm)
        yield Phase(kind=PhaseKind.PRODUCT, source=Buffer.INPUT, matrices=(self.of_hidden,))

    def end(self) -> Iterator[Phase]:
        yield from ()


@dataclass(frozen=True)
class BesideEntry:
    """What stands before the layer of an EAGLE-3 head: both normed vectors, side by side, and then
    the residual are given."""

    width: int

    def begin(self) -> Iterator[Phase]:
        yield _given(Buffer.RESIDUAL, 2 * self.width, self.width)
        yield _given(Buffer.MIXED, 0, 2 * self.width)

    def end(self) -> Iterator[Phase]:
        yield from ()


class RowsProgram:
    """Maps rows to rows, without keys and values."""

    def __init__(self, phases: Iterator[Phase], block_size: int, threads: int) -> None:
        """The last phase is a ROWS."""
        program = Program(tuple(phases), vocab=1)
        self._decoder = Decoder(program, block_size, 0, cache="float32", threads=threads)

    def __call__(self, tokens: np.ndarray, numbers: np.ndarray | None = None) -> np.ndarray:
        """`tokens`: [rows]. `numbers`: [rows, width] float32, what is given. Returns [rows, width]
        float32."""
        count = len(tokens)
        step = DecoderStep(
            tokens=np.ascontiguousarray(tokens, dtype=np.int32),
            first_row=np.array([0, count], dtype=np.int32),
            starts=np.zeros(1, dtype=np.int32),
            tables=np.zeros(1, dtype=np.int32),
            first_block=np.zeros(1, dtype=np.int32),
            given=GivenRows() if numbers is None else all_given(numbers),
        )
        return self._decoder.logits(step, np.arange(count, dtype=np.int32))


def normed_embedding(embedding: PackedMatrix, norm: NormWeights, width: int) -> Iterator[Phase]:
    yield Phase(kind=PhaseKind.EMBED, matrices=(embedding,))
    yield rows_phase(width, norm)


def normed(norm: NormWeights, width: int) -> Iterator[Phase]:
    yield _given(Buffer.RESIDUAL, 0, width)
    yield rows_phase(width, norm)


def multiplied(matrix: PackedMatrix) -> Iterator[Phase]:
    inputs, outputs = matrix.struct.inputs, matrix.struct.outputs
    yield _given(Buffer.MIXED, 0, inputs)
    yield _input(matrix, Buffer.MIXED, inputs)
    yield product_into(matrix, Buffer.RESIDUAL)
    yield rows_phase(outputs)


def all_given(numbers: np.ndarray) -> GivenRows:
    """All rows of a step have numbers, [rows, width] float32."""
    numbers = np.ascontiguousarray(numbers, dtype=np.float32)
    return GivenRows(rows=np.arange(len(numbers), dtype=np.int32), numbers=numbers)


def _given(target: Buffer, first: int, width: int) -> Phase:
    return Phase(kind=PhaseKind.TAKE_ROWS, target=target, first=first, width=width, adds=False)


def _input(
    reader: PackedMatrix, source: Buffer, width: int, norm: NormWeights | None = None
) -> Phase:
    """It waits: what is multiplied may be written where it was read."""
    return Phase(
        kind=PhaseKind.MAKE_INPUT,
        source=source,
        target=Buffer.INPUT,
        width=width,
        norm=norm,
        forms=forms_of(reader),
    )
