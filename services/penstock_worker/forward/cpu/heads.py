"""Heads that draft, on the CPU kernels: a program of one layer, with what is in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.families.eagle3 import NUM_AUX_LAYERS
from penstock.families.family import OF_EMBEDDING, OF_HIDDEN
from penstock.model.config import HeadConfig
from penstock.model.kv_layout import kv_layout
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.decoder import Decoder, halves_of
from penstock_kernels.cpu.decoder_step import DecoderStep, GivenRows
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, pack
from penstock_kernels.cpu.operands import NormWeights
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program
from penstock_kernels.cpu.streams import CPUMixing
from penstock_worker.forward.cpu.aux_hidden import CPUAuxHidden
from penstock_worker.forward.cpu.backend import shapes_of
from penstock_worker.forward.cpu.compressed_layers import spread
from penstock_worker.forward.cpu.dtypes import cache_of, dtype_of, kind_of
from penstock_worker.forward.cpu.forward import step_of
from penstock_worker.forward.cpu.gates import forms_of, product_into
from penstock_worker.forward.cpu.norms import NormReader
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.program import ProgramEnds, compile_program, rows_phase
from penstock_worker.forward.cpu.reading import CPUWeights
from penstock_worker.forward.cpu.weights import ModelWeights
from penstock_worker.forward.heads import HeadForward, HeadRecipe, OpenHead, in_served_vocabulary
from penstock_worker.forward.interface import Batch, StepCancelled
from penstock_worker.models.aux_hidden import AuxHidden
from penstock_worker.weights.heads import SharedEnds, drafted_ids
from penstock_worker.weights.weights import Weights

# The programs of heads that draft.


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
    """The product's columns that multiply the hidden state."""

    def begin(self) -> Iterator[Phase]:
        yield Phase(kind=PhaseKind.EMBED, matrices=(self.embedding,))
        yield input_of(self.of_embedding, Buffer.RESIDUAL, self.width, self.embedding_norm)
        yield product_into(self.of_embedding, Buffer.RESIDUAL)
        yield given_into(Buffer.MIXED, 0, self.width)
        yield input_of(self.of_hidden, Buffer.MIXED, self.width, self.hidden_norm)
        yield Phase(kind=PhaseKind.PRODUCT, source=Buffer.INPUT, matrices=(self.of_hidden,))

    def end(self) -> Iterator[Phase]:
        yield from ()


@dataclass(frozen=True)
class MixedEntry:
    """What stands before a layer that mixes several residuals: a product of the embedding, to which
    what is given is added, for each of them."""

    config: HeadConfig
    embedding: PackedMatrix
    embedding_norm: NormWeights
    of_embedding: PackedMatrix
    mixing: CPUMixing

    def begin(self) -> Iterator[Phase]:
        width = self.config.hidden_size
        yield Phase(kind=PhaseKind.EMBED, matrices=(self.embedding,))
        yield input_of(self.of_embedding, Buffer.RESIDUAL, width, self.embedding_norm)
        yield product_into(self.of_embedding, Buffer.RESIDUAL)
        yield from spread(self.config, self.mixing)
        given = given_into(Buffer.STREAMS, 0, self.config.hidden_numbers)
        yield replace(given, adds=True)

    def end(self) -> Iterator[Phase]:
        yield from ()


@dataclass(frozen=True)
class BesideEntry:
    """What stands before the layer of an EAGLE-3 head: both normed vectors, side by side, and then
    the residual are given."""

    width: int

    def begin(self) -> Iterator[Phase]:
        yield given_into(Buffer.RESIDUAL, 2 * self.width, self.width)
        yield given_into(Buffer.MIXED, 0, 2 * self.width)

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
    yield given_into(Buffer.RESIDUAL, 0, width)
    yield rows_phase(width, norm)


def multiplied(matrix: PackedMatrix, norm: NormWeights | None = None) -> Iterator[Phase]:
    inputs, outputs = matrix.struct.inputs, matrix.struct.outputs
    yield given_into(Buffer.MIXED, 0, inputs)
    yield input_of(matrix, Buffer.MIXED, inputs, norm)
    yield product_into(matrix, Buffer.RESIDUAL)
    yield rows_phase(outputs)


def all_given(numbers: np.ndarray) -> GivenRows:
    """Returns GivenRows in which all rows of a step have numbers: [rows, width] float32."""
    numbers = np.ascontiguousarray(numbers, dtype=np.float32)
    return GivenRows(rows=np.arange(len(numbers), dtype=np.int32), numbers=numbers)


def given_into(target: Buffer, first: int, width: int) -> Phase:
    return Phase(kind=PhaseKind.TAKE_ROWS, target=target, first=first, width=width, adds=False)


def input_of(
    reader: PackedMatrix, source: Buffer, width: int, norm: NormWeights | None = None
) -> Phase:
    """The phase that makes a product's input. All threads wait after it, as the product may write
    where it read."""
    return Phase(
        kind=PhaseKind.MAKE_INPUT,
        source=source,
        target=Buffer.INPUT,
        width=width,
        norm=norm,
        forms=forms_of(reader),
    )


@dataclass(frozen=True)
class _Front:
    """What lies in front of the layer."""

    entry: ProgramEnds
    to_hidden: RowsProgram | None
    """Makes hidden states of what was taken of the model; None: they are that."""
    embed: RowsProgram | None = None
    """Makes normed embeddings, for EAGLE-3."""
    hidden_norm: RowsProgram | None = None
    """Norms hidden states, for EAGLE-3."""
    onward: RowsProgram | None = None
    """Makes what further drafts read of the layer's own result; None: it stays as it is."""
    of_hidden: RowsProgram | None = None
    """Norms and multiplies residuals, each as a row, where layers mix several."""


class CPUHead:
    """Adapts a Decoder to the interface `HeadForward`."""

    def __init__(
        self,
        config: HeadConfig,
        decoder: Decoder,
        aux_hidden: AuxHidden,
        front: _Front,
        keep: CPUAuxHidden,
        ids: Tensor | None,
    ) -> None:
        """`aux_hidden`, `keep`: get the layer's own result. `ids`: see `in_served_vocabulary`."""
        self._config = config
        self._decoder = decoder
        self._aux_hidden = aux_hidden
        self._front = front
        self._keep = keep
        self._ids = ids

    @property
    def layers_done(self) -> int:
        return self._decoder.layers_done

    def cancel(self) -> None:
        self._decoder.cancel()

    def kv_blocks(self) -> list[np.ndarray]:
        return self._decoder.kv_blocks()

    @property
    def like(self) -> Tensor:
        return torch.empty(0, self._config.hidden_numbers)

    def hidden(self, taken: Tensor) -> Tensor:
        if self._front.to_hidden is None:
            return taken.clone()
        rows = np.zeros(len(taken), dtype=np.int32)
        return torch.from_numpy(self._front.to_hidden(rows, taken.numpy()))

    def step(
        self, batch: Batch, hidden: Tensor, rows: np.ndarray, onward: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        step = replace(step_of(batch), given=all_given(self._given(batch.tokens, hidden.numpy())))
        logits = self._decoder.logits(step, np.ascontiguousarray(rows, dtype=np.int32))
        if self._decoder.cancelled:
            raise StepCancelled
        self._keep.keep()
        found = self._aux_hidden.taken(len(batch.tokens))[torch.from_numpy(onward)]
        if self._front.onward is not None and len(onward):
            none = np.zeros(len(onward), dtype=np.int32)
            found = torch.from_numpy(self._front.onward(none, found.numpy()))
        served = self._config.served_vocab
        return in_served_vocabulary(torch.from_numpy(logits), self._ids, served), found

    def _given(self, tokens: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        front = self._front
        if front.of_hidden is not None:
            apart = hidden.reshape(-1, self._config.hidden_size)
            made = front.of_hidden(np.zeros(len(apart), dtype=np.int32), apart)
            return made.reshape(hidden.shape)
        if front.embed is None or front.hidden_norm is None:
            return hidden
        normed = front.hidden_norm(tokens, hidden)
        residual = normed if self._config.normed_residual else hidden
        return np.concatenate([front.embed(tokens), normed, residual], 1)


@dataclass(frozen=True)
class _Loader:
    """Reads a head's weights."""

    config: HeadConfig
    weights: Weights
    kind: MatrixKind | None
    setup: Setup
    threads: int
    ends: SharedEnds[PackedMatrix]

    def load(self) -> tuple[ModelWeights, _Front, Tensor | None]:
        """Returns the layer and its ends, what lies in front, and `CPUHead.ids`."""
        packing = CPUPacking(self.weights, self.threads)
        norms = NormReader(self.config, packing)
        if self.config.hyper_connections is not None:
            return self._mixed(packing, norms)
        return (self._normed_apart if self.config.beside else self._joined)(packing, norms)

    def _read(self) -> ModelWeights:
        positions = min(self.setup.max_model_len, self.config.max_position)
        reader = CPUWeights(self.config, self.weights, self.kind, self.threads, ends=self.ends)
        return reader.read(positions)

    def _normed_apart(
        self, packing: CPUPacking, norms: NormReader
    ) -> tuple[ModelWeights, _Front, Tensor | None]:
        config, width = self.config, self.config.hidden_size
        taken = NUM_AUX_LAYERS * config.served_hidden
        matrix = packing.matrix("fc", width, taken, kind=self.kind)
        hidden_norm = norms.norm("layers.0.hidden_norm", width)
        ids = drafted_ids(self.weights, config)
        read = self._read()
        (layer,) = read.layers
        if read.embedding is None or layer.attention_norm is None:
            raise ValueError("a head has an embedding, and a norm of it")
        front = _Front(
            BesideEntry(width),
            self._rows(multiplied(matrix)),
            self._rows(normed_embedding(read.embedding, layer.attention_norm, width)),
            self._rows(normed(hidden_norm, width)),
        )
        return replace(read, layers=[replace(layer, beside_embedding=True)]), front, ids

    def _joined(
        self, packing: CPUPacking, norms: NormReader
    ) -> tuple[ModelWeights, _Front, Tensor | None]:
        width = self.config.hidden_size
        found = [norms.norm(name, width) for name in ("enorm", "hnorm")]
        to_hidden = None
        if self.config.normed_input:
            to_hidden = self._rows(normed(norms.norm("served_norm", width), width))
        matrix = packing.tensor("eh_proj.weight", (width, 2 * width))
        halves = [self._packed(matrix[:, :width]), self._packed(matrix[:, width:])]
        of_embedding, of_hidden = halves[::-1] if self.config.hidden_first else halves
        read = self._read()
        if read.embedding is None or read.norm is None:
            raise ValueError("a head has an embedding, and a norm behind its layer")
        entry = JoinedEntry(width, read.embedding, found[0], found[1], of_embedding, of_hidden)
        onward = self._rows(normed(read.norm, width)) if self.config.normed_result else None
        return read, _Front(entry, to_hidden, onward=onward), None

    def _mixed(
        self, packing: CPUPacking, norms: NormReader
    ) -> tuple[ModelWeights, _Front, Tensor | None]:
        width = self.config.hidden_size
        embedding_norm, hidden_norm = (norms.norm(name, width) for name in ("enorm", "hnorm"))
        of_embedding, of_hidden = (
            packing.matrix(name, width, width, kind=self.kind) for name in (OF_EMBEDDING, OF_HIDDEN)
        )
        read = self._read()
        if read.embedding is None or read.mixing is None:
            raise ValueError("a head has an embedding, and reads residuals behind its layer")
        entry = MixedEntry(self.config, read.embedding, embedding_norm, of_embedding, read.mixing)
        return (
            read,
            _Front(entry, None, of_hidden=self._rows(multiplied(of_hidden, hidden_norm))),
            None,
        )

    def _packed(self, matrix: np.ndarray) -> PackedMatrix:
        """Half a matrix is never packed to whole numbers."""
        kind = MatrixKind.F32 if self.kind is MatrixKind.F32 else MatrixKind.BF16
        rows = np.ascontiguousarray(matrix)
        outputs, inputs = rows.shape
        return pack("F32", rows.view(np.uint8), (outputs, inputs), kind=kind, threads=self.threads)

    def _rows(self, phases: Iterator[Phase]) -> RowsProgram:
        return RowsProgram(phases, self.setup.block_size, self.threads)


def head_recipe(
    config: HeadConfig,
    files: WeightFiles,
    opening: OpenHead,
    setup: Setup,
    threads: int,
    ends: SharedEnds[Any],
) -> HeadRecipe:
    """`files`: the head's. `opening` opens its weights. `setup`: its own. `ends`: of all layers of
    the head. Raises Unable for a head that the kernels can't compute, and StartupError for settings
    that can't be followed."""
    shapes, layout = shapes_of(config, setup), kv_layout(config, setup.max_model_len)
    dtype = dtype_of(setup, files.dtype)
    cache = cache_of(setup.kv_cache_dtype, dtype)

    def build() -> Callable[[int], HeadForward]:
        loader = _Loader(config, opening(torch.float32), kind_of(dtype), setup, threads, ends)
        read, front, ids = loader.load()
        aux_hidden = AuxHidden((1,))
        keep = CPUAuxHidden(aux_hidden, config)
        layers = replace(read, embedding=None)
        program = compile_program(config, layers, ends=front.entry, aux_hidden=keep)

        def with_blocks(blocks: int) -> HeadForward:
            decoder = Decoder(program, setup.block_size, blocks, cache=cache, threads=threads)
            return CPUHead(config, decoder, aux_hidden, front, keep, ids)

        return with_blocks

    block_bytes = sum(halves_of(shapes, cache)) * layout.page_layers(range(1))
    return HeadRecipe(dtype, block_bytes, build)
