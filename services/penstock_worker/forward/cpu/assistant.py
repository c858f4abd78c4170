"""An assistant, which borrows the served model's keys and values, on the CPU kernels: another
program over the same cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from penstock.model.config import HeadConfig, ModelConfig
from penstock.model.kv_layout import kv_layout
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, pack
from penstock_kernels.cpu.operands import NormWeights, RotationTable
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program
from penstock_worker.forward.cpu.aux_hidden import CPUAuxHidden
from penstock_worker.forward.cpu.backend import shapes_of
from penstock_worker.forward.cpu.cross_layers import beside
from penstock_worker.forward.cpu.dtypes import dtype_of, kind_of
from penstock_worker.forward.cpu.forward import CPUForward, RunsProgram, step_of
from penstock_worker.forward.cpu.gates import product_into
from penstock_worker.forward.cpu.heads import RowsProgram, all_given, given_into, input_of, normed
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.program import compile_program, rows_phase
from penstock_worker.forward.cpu.reading import CPUWeights
from penstock_worker.forward.cpu.weights import ModelWeights
from penstock_worker.forward.heads import AssistantRecipe, HeadForward, LikelyIds
from penstock_worker.forward.interface import Batch, Forward, StepCancelled
from penstock_worker.models.aux_hidden import AuxHidden
from penstock_worker.weights.heads import assistant_weights

TAKEN = Buffer.STREAMS
"""The buffer of what has the served model's width; an assistant has no other use for it."""


@dataclass(frozen=True)
class _Ends:
    """What the served model's program begins and ends with."""

    embedding: PackedMatrix
    scale: float
    """Factor of embeddings."""
    norm: NormWeights
    """The norm after the last layer."""

    @staticmethod
    def of(program: Program) -> _Ends:
        embeds = [each for each in program.phases if each.kind is PhaseKind.EMBED]
        logits = [each for each in program.phases if each.kind is PhaseKind.LOGITS]
        if len(embeds) != 1 or len(logits) != 1 or logits[0].norm is None:
            raise ValueError("a model that an assistant drafts for has an embedding and a head")
        embedding = embeds[0].matrices[0]
        if embedding is None:
            raise ValueError("an embedding has a matrix")
        return _Ends(embedding, embeds[0].scale, logits[0].norm)


@dataclass(frozen=True)
class _Entry:
    """What stands before the layers: a product of the served model's embedding of the newest token
    and of its hidden state before it."""

    width: int
    """Hidden size of the served model."""
    ends: _Ends
    of_embedding: PackedMatrix
    """The product's columns that multiply the embedding."""
    of_hidden: PackedMatrix
    """The product's columns that multiply the hidden state."""

    def begin(self) -> Iterator[Phase]:
        yield Phase(
            kind=PhaseKind.EMBED,
            target=TAKEN,
            matrices=(self.ends.embedding,),
            scale=self.ends.scale,
        )
        yield input_of(self.of_embedding, TAKEN, self.width)
        yield product_into(self.of_embedding, Buffer.RESIDUAL)
        yield given_into(TAKEN, 0, self.width)
        yield input_of(self.of_hidden, TAKEN, self.width)
        yield Phase(kind=PhaseKind.PRODUCT, source=Buffer.INPUT, matrices=(self.of_hidden,))

    def end(self) -> Iterator[Phase]:
        yield from ()


def _projected(matrix: PackedMatrix, norm: NormWeights) -> Iterator[Phase]:
    """Maps rows to what a matrix makes of them, normed."""
    width = matrix.struct.inputs
    yield given_into(Buffer.MIXED, 0, width)
    yield input_of(matrix, Buffer.MIXED, width, norm)
    yield product_into(matrix, Buffer.RESIDUAL)
    yield rows_phase(matrix.struct.outputs)


class CPUAssistant(RunsProgram):
    """Adapts a Decoder that drafts for the served model to the interface `HeadForward`."""

    def __init__(
        self,
        config: HeadConfig,
        decoder: Decoder,
        to_hidden: RowsProgram,
        read: _Read,
        keep: CPUAuxHidden,
        aux_hidden: AuxHidden,
    ) -> None:
        """`keep`, `aux_hidden`: get the last layer's result."""
        super().__init__(decoder)
        self._config = config
        self._to_hidden = to_hidden
        self._read = read
        self._keep = keep
        self._aux_hidden = aux_hidden

    def kv_blocks(self) -> list[np.ndarray]:
        """None: it stores nothing."""
        return []

    @property
    def like(self) -> Tensor:
        return torch.empty(0, self._config.served_hidden)

    def hidden(self, taken: Tensor) -> Tensor:
        return _mapped(self._to_hidden, taken)

    def step(
        self, batch: Batch, hidden: Tensor, rows: np.ndarray, onward: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        step = replace(step_of(batch), given=all_given(hidden.numpy()))
        logits = torch.from_numpy(self._decoder.logits(step, rows.astype(np.int32)))
        if self._decoder.cancelled:
            raise StepCancelled
        self._keep.keep()
        results = self._aux_hidden.taken(len(batch.tokens))
        read = self._read
        if read.ids is not None and len(rows):
            logits = read.ids.only(logits, _mapped(read.normed, results[torch.from_numpy(rows)]))
        return logits, _mapped(read.onward, results[torch.from_numpy(onward)])


def _mapped(program: RowsProgram, rows: Tensor) -> Tensor:
    if not len(rows):
        return torch.empty(0, 0)
    none = np.zeros(len(rows), dtype=np.int32)
    return torch.from_numpy(program(none, rows.numpy()))


@dataclass(frozen=True)
class _Read:
    """An assistant's weights."""

    layers: ModelWeights
    of_embedding: PackedMatrix
    of_hidden: PackedMatrix
    normed: RowsProgram
    """Norms what the last layer gives."""
    onward: RowsProgram
    """Makes a hidden state of that of the served model's kind."""
    ids: LikelyIds | None


def _read(
    config: HeadConfig, files: WeightFiles, kind: MatrixKind | None, setup: Setup, threads: int
) -> _Read:
    weights = assistant_weights(files, config, torch.float32)
    width, served = config.hidden_size, config.served_hidden
    packing = CPUPacking(weights, threads)
    joined = packing.tensor("pre_projection.weight", (width, 2 * served))
    of_embedding = _packed(joined[:, :served], kind, threads)
    of_hidden = _packed(joined[:, served:], kind, threads)
    onward = packing.matrix("post_projection", served, width, kind=kind)
    ids = LikelyIds.take(weights, config)
    positions = min(setup.max_model_len, config.max_position)
    layers = CPUWeights(config, weights, kind, threads).read(positions + 1)
    if layers.norm is None:
        raise ValueError("an assistant has a norm behind its layers")
    return _Read(
        replace(layers, embedding=None, rotations=[*map(_ahead, layers.rotations)]),
        of_embedding,
        of_hidden,
        RowsProgram(normed(layers.norm, width), setup.block_size, threads),
        RowsProgram(_projected(onward, layers.norm), setup.block_size, threads),
        ids,
    )


def _ahead(table: RotationTable) -> RotationTable:
    """A row turns as the newest token does, which is one further than the last one that it sees."""
    cosines, sines = (np.ascontiguousarray(each[1:]) for each in (table.cosines, table.sines))
    return replace(table, cosines=cosines, sines=sines)


def _packed(half: np.ndarray, kind: MatrixKind | None, threads: int) -> PackedMatrix:
    """Half a matrix is never packed to whole numbers."""
    kind = MatrixKind.F32 if kind is MatrixKind.F32 else MatrixKind.BF16
    rows = np.ascontiguousarray(half)
    outputs, inputs = rows.shape
    return pack("F32", rows.view(np.uint8), (outputs, inputs), kind=kind, threads=threads)


def assistant_recipe(
    config: HeadConfig, served: ModelConfig, files: WeightFiles, setup: Setup, threads: int
) -> AssistantRecipe:
    """`config`: made for the served model. `files`, `setup`: the assistant's. Raises Unable for one
    that the kernels can't compute, and StartupError for settings that can't be followed."""
    shapes_of(config, setup)
    layout = kv_layout(served, setup.max_model_len)
    of_served = layout.places(range(served.num_layers))
    rules = [config.layer(number).attention for number in range(config.num_layers)]
    places = [of_served[rule.reads] for rule in rules if rule.reads is not None]
    dtype = dtype_of(setup, files.dtype)

    def build() -> Callable[[Forward], HeadForward]:
        read = _read(config, files, kind_of(dtype), setup, threads)
        aux_hidden = AuxHidden((config.num_layers,))
        keep = CPUAuxHidden(aux_hidden, config)

        def beside_model(forward: Forward) -> HeadForward:
            if not isinstance(forward, CPUForward):
                raise TypeError(f"no assistant borrows from a {type(forward).__name__}")
            ends = _Ends.of(forward.decoder.program)
            width = config.served_hidden
            entry = _Entry(width, ends, read.of_embedding, read.of_hidden)
            program = compile_program(
                config, read.layers, ends=entry, places=places, aux_hidden=keep
            )
            to_hidden = RowsProgram(normed(ends.norm, width), setup.block_size, threads)
            decoder = beside(forward.decoder, program)
            return CPUAssistant(config, decoder, to_hidden, read, keep, aux_hidden)

        return beside_model

    return AssistantRecipe(dtype, build)
