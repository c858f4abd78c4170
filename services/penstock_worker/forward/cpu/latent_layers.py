"""The phases of layers whose attention reads tokens, or blocks of them, that an index has chosen:
those of latents, with an index or without, and others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.model.attention_spec import AttentionSpec
from penstock_kernels.cpu.operands import ByHead, IndexShape
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_worker.forward.cpu.gates import forms_of, product_into
from penstock_worker.forward.cpu.layers import LayerPhases
from penstock_worker.forward.cpu.weights import IndexWeights


@dataclass(frozen=True)
class LatentLayerPhases(LayerPhases):
    """A layer whose attention is over latents; its norms are in front."""

    def _attention(self) -> Iterator[Phase]:
        latent, spec = self.weights.latent, self.spec.attention.latent
        query, attention = self.weights.query, self.attention
        if latent is None or spec is None or query is None or self.spec.order != "pre":
            raise ValueError("no program has such a layer of latents")
        index = latent.index
        readers = [query if latent.query_down is None else latent.query_down, latent.down]
        if index is not None:
            readers += [index.key, index.weigher]
        yield self._input(self.weights.attention_norm, *readers)
        yield product_into(latent.down, Buffer.KEYS)
        if index is not None:
            yield from _keys_and_weights(index)
        if latent.query_down is not None:
            yield product_into(latent.query_down, Buffer.RESULT)
            yield Phase(
                kind=PhaseKind.MAKE_INPUT,
                source=Buffer.RESULT,
                target=Buffer.INPUT,
                width=spec.query_rank,
                norm=latent.query_norm,
                forms=forms_of(query, None if index is None else index.query),
                waits=False,
            )
        if index is not None:
            yield from self._chosen(index)
        yield product_into(query, Buffer.MIXED)
        gate = self.weights.output_gate
        if gate is not None:
            # RESULT has had what queries are made of, which INPUT was made of after the residual.
            yield replace(self._input(self.weights.attention_norm, gate), waits=True)
            yield product_into(gate, Buffer.RESULT)
        per_head, turn = spec.plain + spec.rotating, attention.rotation
        # The two read MIXED, and write other numbers of QUERIES.
        yield Phase(
            kind=PhaseKind.PLACE_LATENT,
            source=Buffer.KEYS,
            target=Buffer.QUERIES,
            width=per_head,
            attention=attention,
            norm=latent.norm,
            waits=False,
        )
        yield Phase(
            kind=PhaseKind.BY_HEAD,
            source=Buffer.MIXED,
            target=Buffer.QUERIES,
            by_head=ByHead(
                matrices=latent.to_latents,
                source_stride=per_head,
                target_stride=attention.head_dim,
                target_first=spec.rotating,
                query_factors=None if turn is None else turn.query_factors,
            ),
        )
        yield Phase(
            kind=PhaseKind.ATTEND, source=Buffer.QUERIES, target=Buffer.MIXED, attention=attention
        )
        yield Phase(
            kind=PhaseKind.BY_HEAD,
            source=Buffer.MIXED,
            target=Buffer.QUERIES,
            attention=attention,
            by_head=ByHead(
                matrices=latent.to_values,
                source_stride=attention.value_dim,
                target_stride=spec.value,
            ),
        )
        yield from self.split.valued(
            Phase(
                kind=PhaseKind.MAKE_INPUT,
                source=Buffer.QUERIES,
                target=Buffer.INPUT,
                width=attention.heads * spec.value,
                forms=forms_of(self.weights.output),
                gates=0 if gate is None else gate.struct.outputs,
                # Of few rows each thread makes all. What follows may write to where the gates lie.
                waits=gate is not None,
            ),
            spec.value,
        )

    def _chosen(self, index: IndexWeights) -> Iterator[Phase]:
        """The choice of the tokens that attention reads. Its queries are in QUERIES, which
        attention has no use for yet."""
        yield product_into(index.query, Buffer.QUERIES)
        placed = Phase(
            kind=PhaseKind.PLACE_INDEX,
            source=Buffer.SCORES,
            target=Buffer.QUERIES,
            attention=self.attention,
            norm=index.key_norm,
        )
        yield from _chosen_after(placed)


def _keys_and_weights(index: IndexWeights) -> Iterator[Phase]:
    """A token's key and the weights of its heads, side by side."""
    size, heads = index.key.struct.outputs, index.weigher.struct.outputs
    for matrix, first in ((index.key, 0), (index.weigher, size)):
        product = product_into(matrix, Buffer.SCORES)
        yield replace(product, part=True, first=first, width=size + heads)


def _chosen_after(placed: Phase) -> Iterator[Phase]:
    """The phases of a choice: the index's keys are placed, then it scores, then it chooses."""
    yield placed
    yield replace(placed, kind=PhaseKind.INDEX, norm=None, other_norm=None)
    yield replace(placed, kind=PhaseKind.CHOOSE, norm=None, other_norm=None)


@dataclass(frozen=True)
class BlockLayerPhases(LayerPhases):
    """A layer whose attention reads blocks of positions; its norms are in front."""

    def _attention(self) -> Iterator[Phase]:
        index, weights = self.weights.blocks, self.weights
        if index is None or self.spec.order != "pre" or self.weights.output_gate is not None:
            raise ValueError("no program has such a layer with an index of blocks")
        yield self._input(weights.attention_norm, *self._heads_matrices(), index.query, index.key)
        yield replace(product_into(index.key, Buffer.SCORES), waits=False)
        # Its queries are in QUERIES, which attention has no use for yet.
        yield product_into(index.query, Buffer.QUERIES)
        placed = Phase(
            kind=PhaseKind.PLACE_INDEX,
            source=Buffer.SCORES,
            target=Buffer.QUERIES,
            attention=self.attention,
            norm=index.key_norm,
            other_norm=index.query_norm,
        )
        yield from _chosen_after(placed)
        yield self._heads()
        yield from self._placed()
        yield from self._attended()


def index_shape(rule: AttentionSpec) -> IndexShape | None:
    """The layer's own index, if it has one."""
    index, blocks = rule.index, rule.blocks
    if blocks is not None:
        return IndexShape(blocks.heads, blocks.size, blocks.block, blocks.local)
    return None if index is None or index.shared else IndexShape(index.heads, index.size)


def keys_read(rule: AttentionSpec) -> int | None:
    """Most keys that a token of the layer reads; None: all that it sees."""
    if rule.blocks is not None:
        return rule.blocks.keys
    return None if rule.index is None else rule.index.most
