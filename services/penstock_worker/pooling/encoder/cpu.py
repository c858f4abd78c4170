"""Encoders on the CPU kernels: one call into the C++ library computes a group of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.model.config import EncoderConfig
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import NOTHING_GIVEN, DecoderStep, GivenRows
from penstock_kernels.cpu.operands import Attention, DistanceBiases, DistanceProducts
from penstock_kernels.cpu.program import Program
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.forward.cpu.adapters import AdaptedPhases, adapted_rows
from penstock_worker.forward.cpu.cross_layers import beside
from penstock_worker.forward.cpu.forward import RunsProgram
from penstock_worker.forward.cpu.program import compile_encoder
from penstock_worker.forward.cpu.reading import CPUWeights
from penstock_worker.forward.interface import StepCancelled
from penstock_worker.pooling.bodies import Inputs
from penstock_worker.pooling.encoder.distances import DistanceTables, distance_biases


def encoder_program(
    config: EncoderConfig, packed: CPUWeights, longest: int, adapted: AdaptedPhases | None
) -> Program:
    """Returns what a step does. `packed`: what packs the weights; `longest`: tokens of an input;
    `adapted`: what adapters may change; None: nothing. Raises UnsupportedModel for weights that
    don't fit the configuration."""
    layers, weights = config.layers, packed.weights
    found = distance_biases(layers, weights, longest)
    biases = None if found is None else DistanceBiases.of(found.float().numpy())
    distances: list[dict[str, Any]] = [{}] * layers.num_layers
    if layers.disentangled is not None:
        tables = DistanceTables(layers, layers.disentangled, weights, longest)
        distances = [_of_distances(tables, number) for number in range(layers.num_layers)]

    def seeing(attention: Attention) -> Attention:
        apart = distances[attention.layer]
        return replace(attention, both_ways=not config.causal, biases=biases, **apart)

    return compile_encoder(packed.config, packed.read(longest), seeing, adapted)


def _of_distances(tables: DistanceTables, number: int) -> dict[str, Any]:
    """Returns what a layer's attention has to say about distances: fields of Attention."""
    layer = tables.of_layer(number)
    # Ours are distances from key to query, the kernels' from query to key.
    rows = layer.rows.flip(0)
    keys, queries = (
        None if each is None else each[:, rows].numpy() for each in (layer.keys, layer.queries)
    )
    return {"scale": layer.scale, "distances": DistanceProducts.of(keys, queries)}


BLOCK = 16
"""Tokens of a block of the memory for keys and values."""
GROUP_BLOCKS = 64
"""Blocks of inputs that are computed together: weights are read once for all of them, and threads
wait for each other more rarely. What a layer makes of so many tokens stays in the last level of the
cache; the kernels cut rows for the nearer ones. A longer input is a group of its own."""


class CPUEncoder(RunsProgram):
    """An Encoder, but not for several threads at once: it has threads of its own."""

    def __init__(
        self,
        config: EncoderConfig,
        program: Program,
        *,
        longest: int,
        threads: int,
        two_parts: bool = False,
        hides: bool = False,
    ) -> None:
        """`longest`: tokens that an input may have. `two_parts`: see Decoder. `hides`: whether
        inputs have tokens that none sees (see Inputs)."""
        self.config = config
        self._longest = longest
        blocks = max(_blocks(longest), GROUP_BLOCKS)
        decoder = Decoder(
            program, BLOCK, blocks, cache="float32", threads=threads, two_parts=two_parts
        )
        super().__init__(decoder)
        self._hiding = beside(decoder, _seeing_given(program)) if hides else None

    @property
    def layers_done(self) -> int:
        hiding = self._hiding
        return super().layers_done + (0 if hiding is None else hiding.layers_done)

    def cancel(self) -> None:
        super().cancel()
        if self._hiding is not None:
            self._hiding.cancel()

    def rows(self, inputs: Inputs, adapters: BatchAdapters | None = None) -> Tensor:
        tokens, types, lengths = inputs.tokens, inputs.types, inputs.lengths
        if max(lengths) > self._longest:
            raise ValueError(f"an input has {max(lengths)} tokens; at most {self._longest} may be")
        seen = inputs.seen or lengths
        out, start, first = [], 0, 0
        for group in _groups(lengths, seen):
            rows = slice(start, start + sum(group))
            own = None
            if adapters is not None:
                of_group = adapters.of_sequence[first : first + len(group)]
                own = replace(adapters, of_sequence=of_group)
            out.append(
                self._group(tokens[rows], types[rows], group, seen[first : first + len(group)], own)
            )
            start, first = rows.stop, first + len(group)
        return torch.from_numpy(np.concatenate(out))

    def _group(
        self,
        tokens: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        seen: list[int],
        adapters: BatchAdapters | None,
    ) -> np.ndarray:
        decoder, given = self._decoder, NOTHING_GIVEN
        if seen != lengths:
            if self._hiding is None:
                raise ValueError("the model has no tokens that others don't see")
            decoder, given = self._hiding, GivenRows(last_seen=_last(seen, lengths))
        ends = np.cumsum([0, *lengths])
        blocks = np.cumsum([0, *map(_blocks, lengths)])
        step = DecoderStep(
            tokens=_int32(tokens),
            first_row=_int32(ends),
            starts=np.zeros(len(lengths), dtype=np.int32),
            tables=np.arange(blocks[-1], dtype=np.int32),
            first_block=_int32(blocks[:-1]),
            types=_int32(types) if self.config.layers.token_types else None,
            given=given,
            adapted=adapted_rows(adapters, np.array(lengths)),
        )
        rows = decoder.logits(step, np.arange(len(tokens), dtype=np.int32))
        if decoder.cancelled:
            raise StepCancelled
        return rows


def _seeing_given(program: Program) -> Program:
    """Returns a program whose tokens see what a step says (GivenRows.last_seen)."""
    phases = (
        phase
        if phase.attention is None
        else replace(phase, attention=replace(phase.attention, both_ways=False))
        for phase in program.phases
    )
    return replace(program, phases=tuple(phases))


def _last(seen: list[int], lengths: list[int]) -> np.ndarray:
    """Returns the last position that each row sees."""
    return _int32(np.repeat(np.array(seen) - 1, lengths))


def _groups(lengths: list[int], seen: list[int]) -> Iterator[list[int]]:
    """Cuts inputs into groups of at most GROUP_BLOCKS blocks, or of one input. Inputs with tokens
    that none sees are in groups of their own."""
    group: list[int] = []
    hides, blocks = False, 0
    for length, keys in zip(lengths, seen, strict=True):
        blocks += _blocks(length)
        if group and (blocks > GROUP_BLOCKS or hides != (keys < length)):
            yield group
            group, blocks = [], _blocks(length)
        hides = keys < length
        group.append(length)
    if group:
        yield group


def _blocks(length: int) -> int:
    return -(-length // BLOCK)


def _int32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)
