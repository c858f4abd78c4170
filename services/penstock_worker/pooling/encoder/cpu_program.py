"""BERT and its relatives as a program of the CPU kernels.

Sources: as those of `encoder.model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.model_config import EncoderConfig
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix
from penstock_kernels.cpu.program import (
    Attention,
    Buffer,
    NormWeights,
    Phase,
    PhaseKind,
    Program,
)
from penstock_worker.forward.cpu.layers import forms_of
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.program import rows_phase

TYPES = -1
"""Phase.first of a look-up by the tokens' types."""


@dataclass(frozen=True)
class EncoderCompiler:
    """Takes an encoder's weights, and makes its program of them."""

    config: EncoderConfig
    packing: CPUPacking
    kind: MatrixKind | None
    """Of all matrices; None: each as the file has it."""

    def program(self) -> Program:
        """Raises UnsupportedModel for weights that don't fit the configuration."""
        config = self.config
        phases = [*self._embedded()]
        attention = Attention(
            layer=0,
            heads=config.num_heads,
            kv_heads=config.num_heads,
            head_dim=config.head_dim,
            both_ways=True,
        )
        for number in range(config.num_layers):
            *layer, last = self._layer(f"encoder.layer.{number}", attention)
            phases += [*layer, replace(last, ends_layer=True)]
        return Program((*phases, rows_phase(config.hidden_size)), config.vocab_size)

    def _embedded(self) -> Iterator[Phase]:
        config, at = self.config, "embeddings"
        words = self._table(f"{at}.word_embeddings", config.vocab_size)
        places = self._table(
            f"{at}.position_embeddings", config.first_position + config.max_position
        )
        yield Phase(kind=PhaseKind.EMBED, matrices=(words,))
        yield Phase(kind=PhaseKind.LOOK_UP, matrices=(places,), first=config.first_position)
        if config.token_types:
            types = self._table(f"{at}.token_type_embeddings", config.token_types)
            yield Phase(kind=PhaseKind.LOOK_UP, matrices=(types,), first=TYPES)
        yield self._norm(f"{at}.LayerNorm")

    def _layer(self, at: str, attention: Attention) -> Iterator[Phase]:
        config = self.config
        size, inner = config.hidden_size, config.intermediate_size
        parts = [f"{at}.attention.self.{part}" for part in ("query", "key", "value")]
        heads = tuple(self._dense(part, size, size) for part in parts)
        mixed = self._dense(f"{at}.attention.output.dense", size, size)
        up = self._dense(f"{at}.intermediate.dense", inner, size)
        down = self._dense(f"{at}.output.dense", size, inner)
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
        yield self._input(up)
        yield Phase(
            kind=PhaseKind.GATE_UP,
            source=Buffer.INPUT,
            target=Buffer.INNER,
            matrices=(None, up),
            activation=config.activation,
            forms=forms_of(down),
        )
        yield Phase(kind=PhaseKind.PRODUCT, source=Buffer.INNER, matrices=(down,))
        yield self._norm(f"{at}.output.LayerNorm")

    def _input(self, *readers: PackedMatrix) -> Phase:
        return Phase(
            kind=PhaseKind.MAKE_INPUT,
            target=Buffer.INPUT,
            width=self.config.hidden_size,
            forms=forms_of(*readers),
            waits=False,
        )

    def _norm(self, name: str) -> Phase:
        size = self.config.hidden_size
        weight, bias = (self.packing.vector(f"{name}.{part}", size) for part in ("weight", "bias"))
        norm = NormWeights(weight, self.config.layer_norm_eps, "layer", bias)
        return Phase(kind=PhaseKind.NORM, width=size, norm=norm)

    def _dense(self, name: str, outputs: int, inputs: int) -> PackedMatrix:
        return self.packing.matrix(name, outputs, inputs, kind=self.kind, bias=True)

    def _table(self, name: str, rows: int) -> PackedMatrix:
        return self.packing.matrix(name, rows, self.config.hidden_size, kind=self.kind)
