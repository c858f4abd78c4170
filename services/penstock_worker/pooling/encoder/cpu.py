"""Encoders on the CPU kernels. BERT and its relatives, GTE among them, have a program of their own.

Sources: as those of `encoder.model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.model.config import EncoderConfig
from penstock.model.layer_spec import ExpertsSpec
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import NOTHING_GIVEN, DecoderStep, GivenRows
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix
from penstock_kernels.cpu.operands import (
    Attention,
    DistanceBiases,
    DistanceProducts,
    Experts,
    NormWeights,
    RotationTable,
)
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program
from penstock_worker.adapters.adaptable import EMBEDDING
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.forward.cpu.adapters import AdaptedPhases, adapted_rows
from penstock_worker.forward.cpu.cross_layers import beside
from penstock_worker.forward.cpu.forward import RunsProgram
from penstock_worker.forward.cpu.gates import forms_of, product_into
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.program import rows_phase
from penstock_worker.forward.cpu.weights import rotation_table
from penstock_worker.forward.interface import StepCancelled
from penstock_worker.layers.rotary import Rotary
from penstock_worker.pooling.bodies import Inputs
from penstock_worker.pooling.encoder.distances import DistanceTables
from penstock_worker.pooling.encoder.model import by_distance, by_slope
from penstock_worker.pooling.encoder.names import HEADS

TYPES = -1
"""Phase.first of a look-up by the tokens' types."""


@dataclass(frozen=True)
class EncoderCompiler:
    """Takes an encoder's weights, and makes its program of them."""

    config: EncoderConfig
    packing: CPUPacking
    kind: MatrixKind | None
    """The kind of all matrices; None: each as the file has it."""
    longest: int
    """Tokens of an input."""
    adapted: AdaptedPhases | None = None
    """What adapters may change; None: nothing."""
    named: list[tuple[PackedMatrix, str]] = field(default_factory=list)
    """Matrices that have been packed, by their modules."""

    def program(self) -> Program:
        """Raises UnsupportedModel for weights that don't fit the configuration."""
        config = self.config
        phases = [*self._embedded()]
        attention = Attention(
            layer=0,
            heads=config.num_heads,
            kv_heads=config.num_heads,
            head_dim=config.head_dim,
            rotation=self._rotation(),
            biases=self._biases(),
            both_ways=True,
            place=0,
        )
        names = [config.layer_at(number) for number in range(config.num_layers)]
        tables = self._tables()
        made: dict[str, list[Phase]] = {}
        for number, at in enumerate(names):
            if at in made:
                continue
            apart = attention
            if tables is not None:
                apart = replace(attention, layer=number, **_of_distances(tables, at))
            own = self._layer(number, apart)
            if self.adapted is not None:
                own = self.adapted.of_phases(own, self.named)
            *layer, last = own
            made[at] = [*layer, replace(last, ends_layer=True)]
            self.named.clear()
        phases += [phase for at in names for phase in made[at]]
        low_rank = None if self.adapted is None else self.adapted.targets()
        return Program((*phases, rows_phase(config.hidden_size)), config.vocab_size, low_rank)

    def _rotation(self) -> RotationTable | None:
        rope = self.config.rope
        if rope is None:
            return None
        return rotation_table(Rotary.load(rope, self.packing.weights, self.longest), rope)

    def _tables(self) -> DistanceTables | None:
        spec = self.config.disentangled
        if spec is None:
            return None
        return DistanceTables(self.config, spec, self.packing.weights, self.longest)

    def _biases(self) -> DistanceBiases | None:
        buckets = self.config.relative_buckets
        if self.config.distance_slopes:
            slopes = by_slope(self.config.num_heads, self.longest)
            return DistanceBiases.of(slopes.numpy())
        if not buckets:
            return None
        shape = (buckets, self.config.num_heads)
        values = self.packing.weights.take("encoder.relative_attention_bias.weight", shape)
        return DistanceBiases.of(by_distance(values.float(), self.longest).numpy())

    def _embedded(self) -> Iterator[Phase]:
        config, at = self.config, "embeddings"
        size, small = config.row_of_embedding, config.embedding_size
        # Rows of embeddings have a buffer of their own width.
        target = Buffer.RESULT if small else Buffer.RESIDUAL
        words = self._table(f"{at}.word_embeddings", config.vocab_size)
        embed = Phase(kind=PhaseKind.EMBED, target=target, matrices=(words,))
        yield embed if self.adapted is None else self.adapted.of_end(embed, EMBEDDING)
        look_up = Phase(kind=PhaseKind.LOOK_UP, target=target)
        if config.position_table:
            rows = config.first_position + config.max_position
            places = self._table(f"{at}.position_embeddings", rows)
            yield replace(look_up, matrices=(places,), first=config.first_position)
        if config.token_types:
            types = self._table(f"{at}.token_type_embeddings", config.token_types)
            yield replace(look_up, matrices=(types,), first=TYPES)
        yield replace(self._norm(f"{at}.LayerNorm", size), source=target, target=target)
        if small:
            matrix = self._dense(f"{at}.projection", config.hidden_size, small)
            yield replace(self._input(matrix), source=target, width=small)
            yield Phase(kind=PhaseKind.PRODUCT, source=Buffer.INPUT, matrices=(matrix,), adds=False)

    def _layer(self, number: int, attention: Attention) -> Iterator[Phase]:
        config, at = self.config, self.config.layer_at(number)
        size = config.hidden_size
        heads = self._heads(f"{at}.attention.self")
        mixed = self._dense(f"{at}.attention.output.dense", size, size)
        yield self._input(*heads)
        yield Phase(
            kind=PhaseKind.HEADS,
            source=Buffer.INPUT,
            target=Buffer.QUERIES,
            attention=attention,
            matrices=heads,
        )
        yield Phase(
            kind=PhaseKind.ATTEND, source=Buffer.QUERIES, target=Buffer.MIXED, attention=attention
        )
        yield replace(self._input(mixed), source=Buffer.MIXED, attention=attention)
        yield Phase(kind=PhaseKind.PRODUCT, source=Buffer.INPUT, matrices=(mixed,))
        yield self._norm(f"{at}.attention.output.LayerNorm")
        if config.experts is not None and config.has_experts(number):
            yield from self._experts(f"{at}.experts", config.experts)
        else:
            yield from self._feed_forward(at)
        yield self._norm(f"{at}.output.LayerNorm")

    def _feed_forward(self, at: str) -> Iterator[Phase]:
        config = self.config
        gate, up = self._inner(f"{at}.intermediate")
        down = self._dense(f"{at}.output.dense", config.hidden_size, config.intermediate_size)
        yield self._input(*(matrix for matrix in (gate, up) if matrix is not None))
        yield Phase(
            kind=PhaseKind.GATE_UP,
            source=Buffer.INPUT,
            target=Buffer.INNER,
            matrices=(gate, up),
            activation=config.activation,
            forms=forms_of(down),
        )
        yield Phase(kind=PhaseKind.PRODUCT, source=Buffer.INNER, matrices=(down,))

    def _experts(self, at: str, spec: ExpertsSpec) -> Iterator[Phase]:
        size, kind = self.config.hidden_size, self.kind

        def matrix(name: str, outputs: int, inputs: int) -> PackedMatrix:
            return self.packing.matrix(f"{at}.{name}", outputs, inputs, kind=kind)

        router = matrix("router", spec.count, size)
        ups = tuple(matrix(f"{number}.up", spec.inner, size) for number in range(spec.count))
        downs = tuple(matrix(f"{number}.down", size, spec.inner) for number in range(spec.count))
        experts = Experts(
            active=spec.active,
            ups=ups,
            downs=downs,
            scoring=spec.router,
            normalised=spec.normalised,
        )
        yield self._input(router, *ups)
        yield product_into(router, Buffer.SCORES)
        yield Phase(kind=PhaseKind.ROUTE, experts=experts, forms=forms_of(*ups))
        yield Phase(
            kind=PhaseKind.EXPERTS_UP,
            experts=experts,
            activation=self.config.activation,
            forms=forms_of(*downs),
        )
        yield Phase(kind=PhaseKind.EXPERTS_DOWN, experts=experts)
        yield Phase(kind=PhaseKind.COMBINE, experts=experts)

    def _heads(self, at: str) -> tuple[PackedMatrix, ...]:
        size = self.config.hidden_size
        return tuple(self._dense(f"{at}.{part}", size, size) for part in HEADS)

    def _inner(self, at: str) -> tuple[PackedMatrix | None, PackedMatrix]:
        """The gate, which lies under what it weighs in some files, and that. Only without a gate
        there is a bias."""
        size, inner, name = self.config.hidden_size, self.config.intermediate_size, f"{at}.dense"
        if self.packing.weights.has(f"{at}.gate.weight"):
            parts = (f"{at}.{part}" for part in ("gate", "up"))
            gate, up = (self.packing.matrix(part, inner, size, kind=self.kind) for part in parts)
            return gate, up
        if not self.config.gated:
            return None, self._dense(name, inner, size)
        up, gate = (
            self.packing.matrix(name, 2 * inner, size, kind=self.kind, rows=rows)
            for rows in (range(inner), range(inner, 2 * inner))
        )
        return gate, up

    def _input(self, *readers: PackedMatrix) -> Phase:
        return Phase(
            kind=PhaseKind.MAKE_INPUT,
            target=Buffer.INPUT,
            width=self.config.hidden_size,
            forms=forms_of(*readers),
            waits=False,
        )

    def _norm(self, name: str, size: int = 0) -> Phase:
        """`size`: of a row; 0: that of the layers."""
        size = size or self.config.hidden_size
        weight, bias = (self.packing.vector(f"{name}.{part}", size) for part in ("weight", "bias"))
        norm = NormWeights(weight, self.config.layer_norm_eps, "layer", bias)
        return Phase(kind=PhaseKind.NORM, width=size, norm=norm)

    def _dense(self, name: str, outputs: int, inputs: int) -> PackedMatrix:
        bias = self.config.biases
        found = self.packing.matrix(name, outputs, inputs, kind=self.kind, bias=bias)
        if self.adapted is not None and name in self.adapted.modules:
            self.named.append((found, name))
        return found

    def _table(self, name: str, rows: int) -> PackedMatrix:
        return self.packing.matrix(name, rows, self.config.row_of_embedding, kind=self.kind)


def _of_distances(tables: DistanceTables, at: str) -> dict[str, Any]:
    """Returns what a layer's attention has to say about distances: fields of Attention."""
    layer = tables.of_layer(at)
    # Ours are those of a query behind a key, the kernels' those of a key behind a query.
    rows = layer.rows.flip(0)
    keys, queries = (
        None if each is None else each[:, rows].numpy() for each in (layer.keys, layer.queries)
    )
    return {"scale": layer.scale, "distances": DistanceProducts.of(keys, queries)}


# One call into the C++ library computes a group of inputs.

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
            types=_int32(types) if self.config.token_types else None,
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
