"""The phases of a decoder's layer.

Neighbouring phases depend on each other through their buffers, so that nearly all wait for each
other. What needn't is said where it is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.operands import Attention, Experts, NormWeights
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_worker.forward.cpu.gates import (
    FLOATS,
    forms_of,
    product_into,
    residual_for,
    sparsely_gated,
)
from penstock_worker.forward.cpu.split import Split
from penstock_worker.forward.cpu.weights import ExpertWeights, LayerWeights


@dataclass(frozen=True)
class LayerPhases:
    """Phases of a layer with keys and values, or of feed-forward alone."""

    config: ModelConfig
    spec: LayerSpec
    weights: LayerWeights
    attention: Attention
    experts: Experts | None
    split: Split

    def phases(self) -> Iterator[Phase]:
        if self.spec.order == "parallel":
            yield from self._parallel()
            return
        if self.spec.halves != "feed_forward":
            yield from self._attention()
            yield from self._added([self._output()], self.weights.attention_output_norm)
        if self.spec.halves != "mixer":
            yield from self._fed()

    def _fed(self) -> Iterator[Phase]:
        """The feed-forward, and what it adds to the residual."""
        weights = self.weights
        yield self._input(weights.feed_forward_norm, *self._inner_matrices())
        yield from self._inner()
        yield from self._added(self._outcome(), weights.feed_forward_output_norm)

    def _attention(self) -> Iterator[Phase]:
        """Yields the phases of attention up to the product that is added to the residual."""
        gate = self.weights.output_gate
        yield self._input(self.weights.attention_norm, *self._heads_matrices(), gate)
        if gate is not None:
            # Into a buffer of its own: the queries needn't wait for it.
            yield replace(product_into(gate, Buffer.RESULT), waits=False)
        yield self._heads()
        yield from self._placed()
        yield from self._attended()

    def _parallel(self) -> Iterator[Phase]:
        """Attention and feed-forward read the residual before either is added to it."""
        weights, own_norm = self.weights, self.spec.two_norms
        if weights.inner_norm is not None:
            raise ValueError("no program has such a norm of inner values beside attention")
        shared = () if own_norm else self._inner_matrices()
        yield self._input(weights.attention_norm, *self._heads_matrices(), *shared)
        # Products of the same input into buffers of their own needn't wait for each other.
        yield self._heads(waits=own_norm)
        if own_norm:
            yield self._input(weights.feed_forward_norm, *self._inner_matrices())
        yield from self._inner()
        yield from self._placed()
        yield from self._attended()
        yield from self._added([self._output(), *self._outcome()], None)

    def _heads_matrices(self) -> tuple[PackedMatrix, ...]:
        found = (self.weights.query, self.weights.key, self.weights.value)
        return tuple(each for each in found if each is not None)

    def _inner_matrices(self) -> tuple[PackedMatrix, ...]:
        """What reads the feed-forward's input."""
        experts = self.weights.experts
        found = [self.weights.gate, self.weights.up]
        if experts is not None:
            found += [experts.router, experts.shared_gate, *experts.gates, *experts.ups]
        return tuple(each for each in found if each is not None)

    def _input(self, norm: NormWeights | None, *readers: PackedMatrix | None) -> Phase:
        return residual_for(*readers, width=self.config.hidden_size, norm=norm)

    def _heads(self, *, waits: bool = True) -> Phase:
        whole = self.spec.attention.norm == "whole"
        return self.split.heads(
            Phase(
                kind=PhaseKind.HEADS,
                source=Buffer.INPUT,
                target=Buffer.QUERIES,
                attention=self.attention,
                whole=whole,
                norm=None if whole else self.weights.query_norm,
                other_norm=None if whole else self.weights.key_norm,
                third_norm=self.weights.value_norm,
                limit=self.spec.attention.qkv_bound,
                matrices=self._heads_matrices(),
                waits=waits,
            )
        )

    def _placed(self) -> Iterator[Phase]:
        if self.spec.attention.norm == "whole":
            yield from self.split.placed()
            yield self.split.heads(
                Phase(
                    kind=PhaseKind.PLACE,
                    attention=self.attention,
                    norm=self.weights.query_norm,
                    other_norm=self.weights.key_norm,
                )
            )

    def _attended(self) -> Iterator[Phase]:
        """Attention, and its result as the input of a product."""
        attention, gate = self.attention, self.weights.output_gate
        yield self.split.heads(
            Phase(
                kind=PhaseKind.ATTEND,
                source=Buffer.QUERIES,
                target=Buffer.MIXED,
                attention=attention,
            )
        )
        yield from self.split.attended(
            Phase(
                kind=PhaseKind.MAKE_INPUT,
                source=Buffer.MIXED,
                target=Buffer.INPUT,
                width=attention.heads * attention.head_dim,
                norm=self.weights.mixed_norm,
                forms=forms_of(self.weights.output),
                attention=attention,
                gates=0 if gate is None else gate.struct.outputs,
                soft_gates=self.spec.attention.soft_gate,
                # Of few rows each thread makes all. What follows may write to where the gates lie.
                waits=gate is not None,
            )
        )

    def _inner(self) -> Iterator[Phase]:
        """Yields the phases of the feed-forward up to what is added to the residual."""
        yield from self._routed()
        yield from self._for_all()

    def _for_all(self) -> Iterator[Phase]:
        """The feed-forward that every token has, up to what is added to the residual."""
        weights = self.weights
        if self.spec.feed_forward.sparsity and weights.gate is not None:
            yield from sparsely_gated(self.spec.feed_forward, weights)
        elif weights.down is not None:
            shared_gate = weights.experts.shared_gate if weights.experts is not None else None
            if shared_gate is not None:
                yield self._scores(shared_gate)
            phase = replace(self._gated_up(), weighed=shared_gate is not None)
            yield from self.split.inner(phase, weights.down.struct.inputs)
            if weights.inner_norm is not None:
                yield Phase(
                    kind=PhaseKind.MAKE_INPUT,
                    source=Buffer.INNER,
                    target=Buffer.INPUT,
                    width=weights.down.struct.inputs,
                    norm=weights.inner_norm,
                    forms=forms_of(weights.down),
                    waits=False,
                )

    def _gated_up(self) -> Phase:
        """The feed-forward's inner values."""
        weights = self.weights
        return Phase(
            kind=PhaseKind.GATE_UP,
            source=Buffer.INPUT,
            target=Buffer.INNER,
            matrices=(weights.gate, weights.up),
            activation=self.spec.feed_forward.activation,
            limit=self.spec.feed_forward.limit,
            gate_limit=self.spec.feed_forward.gate_limit,
            xielu=weights.coefficients,
            forms=forms_of(weights.down) if weights.inner_norm is None else FLOATS,
        )

    def _routed(self) -> Iterator[Phase]:
        weights = self.weights.experts
        if weights is None:
            return
        yield self._scores(weights.router)
        yield self._route(weights)
        down = Phase(kind=PhaseKind.EXPERTS_DOWN, experts=self.experts)
        yield from self.split.experts(self._experts_up(weights), down, weights)

    def _route(self, weights: ExpertWeights) -> Phase:
        readers = forms_of(*weights.gates, *weights.ups)
        return Phase(kind=PhaseKind.ROUTE, experts=self.experts, forms=readers)

    def _experts_up(self, weights: ExpertWeights) -> Phase:
        said = self.spec.feed_forward.experts
        return Phase(
            kind=PhaseKind.EXPERTS_UP,
            experts=self.experts,
            activation=self.spec.feed_forward.activation,
            limit=None if said is None else said.limit,
            gate_limit=self.spec.feed_forward.gate_limit,
            forms=forms_of(*weights.downs),
        )

    def _scores(self, matrix: PackedMatrix) -> Phase:
        return product_into(matrix, Buffer.SCORES)

    def _output(self) -> Phase:
        return Phase(kind=PhaseKind.PRODUCT, source=Buffer.INPUT, matrices=(self.weights.output,))

    def _outcome(self) -> list[Phase]:
        """What the feed-forward adds to the residual."""
        found = []
        if self.experts is not None:
            found.append(Phase(kind=PhaseKind.COMBINE, experts=self.experts))
        if self.weights.down is not None:
            source = Buffer.INNER if self.weights.inner_norm is None else Buffer.INPUT
            found.append(
                Phase(kind=PhaseKind.PRODUCT, source=source, matrices=(self.weights.down,))
            )
        return found

    def _part_of(self, phase: Phase) -> Phase:
        """This rank's columns of what is added to the residual."""
        combines = phase.kind is PhaseKind.COMBINE
        return self.split.combined(phase) if combines else self.split.results(phase)

    def _added(self, parts: Sequence[Phase], norm: NormWeights | None) -> Iterator[Phase]:
        """The last phases of a branch, whose sum is normalised or not, and added to the residual;
        or of which the residual becomes the normalised sum."""
        scale, parts = self.spec.residual_multiplier, [self._part_of(each) for each in parts]
        summed = self.spec.order == "summed"
        if norm is None or summed:
            yield from (replace(each, scale=scale) for each in parts)
            yield from self.split.joined(Buffer.RESIDUAL)
            if summed:
                yield Phase(kind=PhaseKind.NORM, width=self.config.hidden_size, norm=norm)
            return
        for number, each in enumerate(parts):
            yield replace(each, target=Buffer.RESULT, adds=number > 0)
        yield from self.split.joined(Buffer.RESULT)
        yield Phase(
            kind=PhaseKind.ADD_NORM,
            source=Buffer.RESULT,
            width=self.config.hidden_size,
            norm=norm,
            scale=scale,
        )


@dataclass(frozen=True)
class LatentExpertsPhases(LayerPhases):
    """Feed-forward alone, whose chosen experts read a projection of the hidden state. It becomes
    INPUT when nothing else reads the hidden state any more."""

    def _inner(self) -> Iterator[Phase]:
        weights, down, up = self._latents()
        width = down.struct.outputs
        yield replace(product_into(down, Buffer.RESULT), waits=False)
        yield self._scores(weights.router)
        yield from self._for_all()
        yield self._made_input(width, *weights.gates, *weights.ups)
        yield self._route(weights)
        results = Phase(kind=PhaseKind.EXPERTS_DOWN, experts=self.experts)
        yield from self.split.experts(self._experts_up(weights), results, weights, width)
        combined = Phase(
            kind=PhaseKind.COMBINE, target=Buffer.RESULT, experts=self.experts, adds=False
        )
        yield self.split.combined(combined, width)
        yield from self.split.joined(Buffer.RESULT, width)
        yield self._made_input(width, up)

    def _outcome(self) -> list[Phase]:
        _, _, up = self._latents()
        found = [Phase(kind=PhaseKind.PRODUCT, source=Buffer.INPUT, matrices=(up,))]
        if self.weights.down is not None:
            found.append(
                Phase(kind=PhaseKind.PRODUCT, source=Buffer.INNER, matrices=(self.weights.down,))
            )
        return found

    def _inner_matrices(self) -> tuple[PackedMatrix, ...]:
        weights, down, _ = self._latents()
        found = (self.weights.gate, self.weights.up, weights.router, weights.shared_gate, down)
        return tuple(each for each in found if each is not None)

    def _made_input(self, width: int, *readers: PackedMatrix) -> Phase:
        return Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.RESULT,
            target=Buffer.INPUT,
            width=width,
            forms=forms_of(*readers),
            waits=False,
        )

    def _latents(self) -> tuple[ExpertWeights, PackedMatrix, PackedMatrix]:
        """The experts, and the matrices that lead to their latents and back."""
        weights = self.weights.experts
        if weights is None or weights.latent_down is None or weights.latent_up is None:
            raise ValueError("the layer's experts read the hidden state")
        return weights, weights.latent_down, weights.latent_up
