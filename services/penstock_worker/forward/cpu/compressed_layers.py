"""The phases of layers that mix several residuals, and of attention whose tokens see entries that
stand for several of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.model.config import ModelConfig
from penstock_kernels.cpu.operands import ByHead
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_kernels.cpu.streams import CPUMixing
from penstock_worker.forward.cpu.gates import forms_of, product_into
from penstock_worker.forward.cpu.layers import LayerPhases
from penstock_worker.forward.cpu.weights import CompressedWeights


@dataclass(frozen=True)
class MixingLayerPhases(LayerPhases):
    """A layer whose halves each read a weighed sum of residuals, which is RESIDUAL meanwhile. What
    they give is RESULT. No ranks share such a layer."""

    def phases(self) -> Iterator[Phase]:
        spec, mixing = self.spec, self.weights.mixing
        if mixing is None or spec.order != "pre" or spec.halves != "both":
            raise ValueError("no program has such a layer that mixes residuals")
        first, second = mixing
        yield from read_residuals(self.config, first)
        yield from self._attention()
        yield from self._written([self._output()], first)
        yield from read_residuals(self.config, second)
        yield self._input(self.weights.feed_forward_norm, *self._inner_matrices())
        yield from self._inner()
        yield from self._written(self._outcome(), second)

    def _written(self, parts: Sequence[Phase], mixing: CPUMixing) -> Iterator[Phase]:
        """The last phases of a half, and how the residuals take up their sum."""
        for number, each in enumerate(parts):
            yield replace(each, target=Buffer.RESULT, adds=number > 0)
        yield Phase(
            kind=PhaseKind.MIX_WRITE,
            source=Buffer.RESULT,
            width=self.config.hidden_size,
            mixing=mixing,
        )


def spread(config: ModelConfig, mixing: CPUMixing) -> Iterator[Phase]:
    """Phases after the embedding: all residuals are it."""
    yield Phase(kind=PhaseKind.SPREAD, width=config.hidden_size, mixing=mixing)


def read_residuals(config: ModelConfig, mixing: CPUMixing) -> Iterator[Phase]:
    """RESIDUAL becomes a weighed sum of residuals."""
    logits = Phase(
        kind=PhaseKind.MIX_LOGITS, target=Buffer.SCORES, width=config.hidden_size, mixing=mixing
    )
    yield logits
    yield replace(logits, kind=PhaseKind.MIX_READ, source=Buffer.SCORES, target=Buffer.RESIDUAL)


@dataclass(frozen=True)
class CompressedLayerPhases(MixingLayerPhases):
    """A layer whose attention is to the last tokens and to entries."""

    def _attention(self) -> Iterator[Phase]:
        own, query, attention = self.weights.compressed, self.weights.query, self.attention
        if own is None or query is None:
            raise ValueError("the layer's attention has no entries")
        yield from self._made_of_hidden(own)
        yield Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.RESULT,
            target=Buffer.INPUT,
            width=own.query_down.struct.outputs,
            norm=own.query_norm,
            forms=forms_of(query, own.index_query),
            waits=False,
        )
        if own.index_query is not None:
            yield replace(product_into(own.index_query, Buffer.MIXED), waits=False)
        yield product_into(query, Buffer.QUERIES)
        yield Phase(
            kind=PhaseKind.PLACE_ENTRIES,
            source=Buffer.KEYS,
            target=Buffer.QUERIES,
            beside=Buffer.MIXED,
            attention=attention,
            norm=own.key_norm,
            other_norm=own.head_norm,
        )
        if own.entries is not None:
            yield Phase(kind=PhaseKind.MAKE_ENTRIES, attention=attention)
        if own.index_query is not None:
            index = Phase(
                kind=PhaseKind.INDEX,
                source=Buffer.SCORES,
                target=Buffer.MIXED,
                attention=attention,
            )
            yield index
            yield replace(index, kind=PhaseKind.CHOOSE)
        yield Phase(
            kind=PhaseKind.ATTEND_ENTRIES,
            source=Buffer.QUERIES,
            target=Buffer.MIXED,
            attention=attention,
        )
        yield from self._grouped(own)

    def _made_of_hidden(self, own: CompressedWeights) -> Iterator[Phase]:
        """A token's key and what it gives to entries, side by side in KEYS; the weights of the
        index's heads in SCORES, and the vector that queries are made of in RESULT."""
        products = (own.key, *own.given)
        yield self._input(self.weights.attention_norm, *products, own.index_weigher, own.query_down)
        first, width = 0, sum(each.struct.outputs for each in products)
        for each in products:
            # Products of one input into numbers of their own needn't wait for each other.
            product = replace(product_into(each, Buffer.KEYS), waits=False)
            yield replace(product, part=True, first=first, width=width)
            first += each.struct.outputs
        if own.index_weigher is not None:
            yield replace(product_into(own.index_weigher, Buffer.SCORES), waits=False)
        yield product_into(own.query_down, Buffer.RESULT)

    def _grouped(self, own: CompressedWeights) -> Iterator[Phase]:
        """What the output is made of, of what groups of heads give."""
        rank, inputs = own.by_group[0].struct.outputs, own.by_group[0].struct.inputs
        yield Phase(
            kind=PhaseKind.BY_HEAD,
            source=Buffer.MIXED,
            target=Buffer.QUERIES,
            by_head=ByHead(matrices=own.by_group, source_stride=inputs, target_stride=rank),
        )
        yield Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.QUERIES,
            target=Buffer.INPUT,
            width=len(own.by_group) * rank,
            forms=forms_of(self.weights.output),
            waits=False,
        )
