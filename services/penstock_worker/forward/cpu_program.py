"""Compiles a model's description into the program that the CPU kernels run. Once, at load.

Neighbouring phases depend on each other through their buffers, so that nearly all wait for each
other. What needn't is said where it is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.layer_spec import LayerSpec
from penstock.model_config import ModelConfig
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.program import (
    Attention,
    Buffer,
    ByHead,
    Experts,
    NormWeights,
    Phase,
    PhaseKind,
    Program,
    RotationTable,
)
from penstock_worker.forward.cpu_split import WHOLE, CPUStageEnds, Split


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """Weights of a mixture of experts."""

    router: PackedMatrix
    ups: tuple[PackedMatrix, ...]
    downs: tuple[PackedMatrix, ...]
    gates: tuple[PackedMatrix, ...] = ()
    """Empty for experts without a gate."""
    correction: np.ndarray | None = None
    """[experts] float32, added for choosing only."""
    shared_gate: PackedMatrix | None = None
    """One output: the logit of the weight of the expert that every token has."""


@dataclass(frozen=True, kw_only=True)
class LatentWeights:
    """Weights of attention over latents, besides those that make queries and the output."""

    down: PackedMatrix
    """Makes a token's latent, and behind it what rotates."""
    norm: NormWeights
    to_latents: tuple[PackedMatrix, ...]
    """A head's map of the part of a query that doesn't rotate."""
    to_values: tuple[PackedMatrix, ...]
    """A head's map of latents."""
    query_down: PackedMatrix | None = None
    """Makes the vector that queries are made of; None: they are made of the hidden state."""
    query_norm: NormWeights | None = None
    """Of that vector."""


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Weights of a layer. A norm that the layer doesn't have is None."""

    query: PackedMatrix
    output: PackedMatrix
    key: PackedMatrix | None = None
    value: PackedMatrix | None = None
    latent: LatentWeights | None = None
    """In place of `key` and `value`."""
    up: PackedMatrix | None = None
    """Of the feed-forward, or of the expert that every token has; so are `down` and `gate`."""
    down: PackedMatrix | None = None
    gate: PackedMatrix | None = None
    experts: ExpertWeights | None = None
    attention_norm: NormWeights | None = None
    feed_forward_norm: NormWeights | None = None
    attention_output_norm: NormWeights | None = None
    feed_forward_output_norm: NormWeights | None = None
    query_norm: NormWeights | None = None
    key_norm: NormWeights | None = None
    sinks: np.ndarray | None = None
    """[heads] float32."""


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """Weights of a model, or of a rank's part of it."""

    layers: Sequence[LayerWeights]
    """Of the rank's stage."""
    embedding: PackedMatrix | None
    """Of the first stage."""
    head: PackedMatrix | None
    """Of the last stage; so is `norm`."""
    norm: NormWeights | None
    """Behind the last layer."""
    rotations: Sequence[RotationTable]
    """One for each of ModelConfig.ropes."""
    embedding_norm: NormWeights | None = None


def compile_program(
    config: ModelConfig,
    weights: ModelWeights,
    split: Split = WHOLE,
    ends: CPUStageEnds | None = None,
    places: Sequence[tuple[int, int]] | None = None,
) -> Program:
    """Returns what a step does on this rank. `config` has the rank's layers, and the whole model's
    sizes. `ends`: of a pipeline stage. `places`: each layer's KV group, and its place in the
    group's blocks; None: all layers are in one group."""
    phases = [*_phases(config, weights, split, ends)]
    if weights.head is not None:
        phases.append(split.logits(_logits(config, weights.head, weights.norm)))
    elif ends is not None:
        phases += ends.end()
    return Program(tuple(_placed(phases, places)), config.vocab_size)


def _placed(phases: Sequence[Phase], places: Sequence[tuple[int, int]] | None) -> Iterator[Phase]:
    for phase in phases:
        attention = phase.attention
        if attention is None or places is None:
            yield phase
        else:
            group, place = places[attention.layer]
            yield replace(phase, attention=replace(attention, group=group, place=place))


def compile_rows(config: ModelConfig, weights: ModelWeights, *, both_ways: bool = False) -> Program:
    """Returns what a step of a model does whose rows behind the last norm are wanted instead of
    logits. both_ways: it is an encoder's."""
    phases = _phases(config, weights, both_ways=both_ways)
    return Program((*phases, rows_phase(config.hidden_size, weights.norm)), config.vocab_size)


def rows_phase(width: int, norm: NormWeights | None = None) -> Phase:
    """The last phase of a program that gives rows of the residual."""
    return Phase(kind=PhaseKind.ROWS, width=width, norm=norm, waits=False)


def _phases(
    config: ModelConfig,
    weights: ModelWeights,
    split: Split = WHOLE,
    ends: CPUStageEnds | None = None,
    *,
    both_ways: bool = False,
) -> Iterator[Phase]:
    """Everything but what is made of the last layer's rows."""
    if weights.embedding is not None:
        yield from split.embedded(
            Phase(
                kind=PhaseKind.EMBED,
                matrices=(weights.embedding,),
                scale=config.embedding_multiplier,
            )
        )
    elif ends is not None:
        yield from ends.begin()
    if weights.embedding_norm is not None:
        width, norm = config.hidden_size, weights.embedding_norm
        yield Phase(kind=PhaseKind.NORM, width=width, norm=norm)
    kinds: list[Attention] = []
    for number, layer in enumerate(weights.layers):
        spec = config.layer(number)
        attention = _attention(config, spec, layer, weights.rotations, number, split)
        if both_ways:
            attention = _sharing(replace(attention, both_ways=True), kinds)
        kind = _Layer if layer.latent is None else _LatentLayer
        *phases, last = kind(config, spec, layer, attention, _experts(spec, layer), split).phases()
        yield from phases
        yield replace(last, ends_layer=True)


def _logits(config: ModelConfig, head: PackedMatrix, norm: NormWeights | None) -> Phase:
    return Phase(
        kind=PhaseKind.LOGITS,
        matrices=(head,),
        norm=norm,
        scale=config.logits_multiplier,
        soft_cap=config.logits_soft_cap,
        waits=False,
    )


def _sharing(attention: Attention, kinds: list[Attention]) -> Attention:
    """Of an encoder, layers with the same attention share the memory of keys and values. `kinds`:
    those that have been met; a new one is added."""
    for known in kinds:
        if known.rotation is attention.rotation and known.window == attention.window:
            return known
    kinds.append(replace(attention, layer=len(kinds)))
    return kinds[-1]


def _attention(
    config: ModelConfig,
    spec: LayerSpec,
    weights: LayerWeights,
    rotations: Sequence[RotationTable],
    number: int,
    split: Split,
) -> Attention:
    rule = spec.attention
    heads, kv_heads = split.head_counts(config)
    return Attention(
        layer=number,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=config.head_dim,
        latent_dim=None if rule.latent is None else rule.latent.rank,
        rotation=None if rule.rope is None else rotations[rule.rope],
        scale=rule.scale,
        soft_cap=rule.soft_cap,
        window=rule.window,
        chunk=rule.chunk,
        sinks=weights.sinks,
    )


@dataclass(frozen=True)
class _Layer:
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
        weights = self.weights
        yield from self._attention()
        yield from self._added([self._output()], weights.attention_output_norm)
        yield self._input(weights.feed_forward_norm, *self._inner_matrices())
        yield from self._inner()
        yield from self._added(self._outcome(), weights.feed_forward_output_norm)

    def _attention(self) -> Iterator[Phase]:
        """All of the attention but what is added to the residual."""
        yield self._input(self.weights.attention_norm, *self._heads_matrices())
        yield self._heads()
        yield from self._placed()
        yield from self._attended()

    def _parallel(self) -> Iterator[Phase]:
        """Attention and feed-forward read the residual before either is added to it."""
        weights, own_norm = self.weights, self.spec.two_norms
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

    def _input(self, norm: NormWeights | None, *readers: PackedMatrix) -> Phase:
        return Phase(
            kind=PhaseKind.MAKE_INPUT,
            target=Buffer.INPUT,
            width=self.config.hidden_size,
            norm=norm,
            forms=forms_of(*readers),
            waits=False,
        )

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
        attention = self.attention
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
                forms=forms_of(self.weights.output),
                attention=attention,
                waits=False,
            )
        )

    def _inner(self) -> Iterator[Phase]:
        """All of the feed-forward but what is added to the residual."""
        yield from self._routed()
        weights = self.weights
        if weights.down is not None:
            shared_gate = weights.experts.shared_gate if weights.experts is not None else None
            if shared_gate is not None:
                yield self._scores(shared_gate)
            phase = Phase(
                kind=PhaseKind.GATE_UP,
                weighed=shared_gate is not None,
                source=Buffer.INPUT,
                target=Buffer.INNER,
                matrices=(weights.gate, weights.up),
                activation=self.spec.feed_forward.activation,
                forms=forms_of(weights.down),
            )
            yield from self.split.inner(phase, weights.down.struct.inputs)

    def _routed(self) -> Iterator[Phase]:
        weights, experts = self.weights.experts, self.experts
        if weights is None:
            return
        yield self._scores(weights.router)
        readers = forms_of(*weights.gates, *weights.ups)
        yield Phase(kind=PhaseKind.ROUTE, experts=experts, forms=readers)
        ups = Phase(
            kind=PhaseKind.EXPERTS_UP,
            experts=experts,
            activation=self.spec.feed_forward.activation,
            forms=forms_of(*weights.downs),
        )
        yield from self.split.inner(ups, weights.downs[0].struct.inputs)
        yield self.split.results(Phase(kind=PhaseKind.EXPERTS_DOWN, experts=experts))

    def _scores(self, matrix: PackedMatrix) -> Phase:
        return _put(matrix, Buffer.SCORES)

    def _output(self) -> Phase:
        return Phase(kind=PhaseKind.PRODUCT, source=Buffer.INPUT, matrices=(self.weights.output,))

    def _outcome(self) -> list[Phase]:
        """What the feed-forward adds to the residual."""
        found = []
        if self.experts is not None:
            found.append(Phase(kind=PhaseKind.COMBINE, experts=self.experts))
        if self.weights.down is not None:
            found.append(
                Phase(kind=PhaseKind.PRODUCT, source=Buffer.INNER, matrices=(self.weights.down,))
            )
        return found

    def _added(self, parts: Sequence[Phase], norm: NormWeights | None) -> Iterator[Phase]:
        """The last phases of a branch, whose sum is normalised or not, and added to the
        residual."""
        scale, parts = self.spec.residual_multiplier, [self.split.results(each) for each in parts]
        if norm is None:
            yield from (replace(each, scale=scale) for each in parts)
            yield from self.split.joined(Buffer.RESIDUAL)
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
class _LatentLayer(_Layer):
    """A layer whose attention is over latents; its norms are in front."""

    def _attention(self) -> Iterator[Phase]:
        latent, spec = self.weights.latent, self.spec.attention.latent
        if latent is None or spec is None or self.spec.order != "pre":
            raise ValueError("no program has such a layer of latents")
        query, attention = self.weights.query, self.attention
        readers = (query if latent.query_down is None else latent.query_down, latent.down)
        yield self._input(self.weights.attention_norm, *readers)
        yield _put(latent.down, Buffer.KEYS)
        if latent.query_down is not None:
            yield _put(latent.query_down, Buffer.RESULT)
            yield Phase(
                kind=PhaseKind.MAKE_INPUT,
                source=Buffer.RESULT,
                target=Buffer.INPUT,
                width=spec.query_rank,
                norm=latent.query_norm,
                forms=forms_of(query),
                waits=False,
            )
        yield _put(query, Buffer.MIXED)
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
        yield Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.QUERIES,
            target=Buffer.INPUT,
            width=attention.heads * spec.value,
            forms=forms_of(self.weights.output),
            waits=False,
        )


def _put(matrix: PackedMatrix, target: Buffer) -> Phase:
    """A product that isn't added to anything."""
    return Phase(
        kind=PhaseKind.PRODUCT, source=Buffer.INPUT, target=target, matrices=(matrix,), adds=False
    )


def _experts(spec: LayerSpec, weights: LayerWeights) -> Experts | None:
    said, stored = spec.feed_forward.experts, weights.experts
    if said is None or stored is None:
        return None
    return Experts(
        active=said.active,
        ups=stored.ups,
        downs=stored.downs,
        gates=stored.gates,
        sigmoid=said.router == "sigmoid",
        normalised=said.normalised,
        scale=said.scale,
        groups=said.groups,
        active_groups=said.active_groups,
        group_best=said.group_best,
        correction=stored.correction,
    )


def forms_of(*readers: PackedMatrix) -> int:
    """Returns the forms in which these matrices read their input."""
    forms = 0
    for matrix in readers:
        forms |= matrix.form
    return forms
