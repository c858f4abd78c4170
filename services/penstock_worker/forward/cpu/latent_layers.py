"""The phases of a layer whose attention is over latents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock_kernels.cpu.program import Buffer, ByHead, Phase, PhaseKind
from penstock_worker.forward.cpu.gates import forms_of, product_into
from penstock_worker.forward.cpu.layers import LayerPhases


@dataclass(frozen=True)
class LatentLayerPhases(LayerPhases):
    """A layer whose attention is over latents; its norms are in front."""

    def _attention(self) -> Iterator[Phase]:
        latent, spec = self.weights.latent, self.spec.attention.latent
        query, attention = self.weights.query, self.attention
        if latent is None or spec is None or query is None or self.spec.order != "pre":
            raise ValueError("no program has such a layer of latents")
        readers = (query if latent.query_down is None else latent.query_down, latent.down)
        yield self._input(self.weights.attention_norm, *readers)
        yield product_into(latent.down, Buffer.KEYS)
        if latent.query_down is not None:
            yield product_into(latent.query_down, Buffer.RESULT)
            yield Phase(
                kind=PhaseKind.MAKE_INPUT,
                source=Buffer.RESULT,
                target=Buffer.INPUT,
                width=spec.query_rank,
                norm=latent.query_norm,
                forms=forms_of(query),
                waits=False,
            )
        yield product_into(query, Buffer.MIXED)
        per_head = spec.plain + spec.rotating
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
                waits=False,
            ),
            spec.value,
        )
