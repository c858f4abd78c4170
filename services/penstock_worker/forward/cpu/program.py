"""Compiles a model's description into the program that the CPU kernels run. Once, at load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.model.config import ModelConfig
from penstock.model.kv_layout import layers_that_read, one_group
from penstock.model.layer_spec import LayerSpec
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.program import (
    Attention,
    Buffer,
    Experts,
    NormWeights,
    Phase,
    PhaseKind,
    Program,
    RotationTable,
)
from penstock_kernels.cpu.recurrent import RecurrentKind
from penstock_worker.adapters.adaptable import EMBEDDING, HEAD
from penstock_worker.forward.cpu.adapters import AdaptedPhases
from penstock_worker.forward.cpu.cross_layers import CrossLayerPhases
from penstock_worker.forward.cpu.gates import forms_of, product_into
from penstock_worker.forward.cpu.latent_layers import LatentLayerPhases
from penstock_worker.forward.cpu.layer_inputs import finished, inputs_of_layers
from penstock_worker.forward.cpu.layers import LayerPhases
from penstock_worker.forward.cpu.media import taken, tapped
from penstock_worker.forward.cpu.split import WHOLE, Split
from penstock_worker.forward.cpu.stream_layers import StreamLayerPhases, begun, ended
from penstock_worker.forward.cpu.taps import CPUTaps
from penstock_worker.forward.cpu.weights import LayerWeights, ModelWeights, RecurrentWeights


class ProgramEnds(Protocol):
    """What stands in the place of an embedding, or of a head."""

    def begin(self) -> Iterator[Phase]:
        """Phases before the layers."""

    def end(self) -> Iterator[Phase]:
        """Phases after the layers."""


def compile_program(
    config: ModelConfig,
    weights: ModelWeights,
    split: Split = WHOLE,
    ends: ProgramEnds | None = None,
    places: Sequence[tuple[int, int]] | None = None,
    adapted: AdaptedPhases | None = None,
    taps: CPUTaps | None = None,
) -> Program:
    """Returns what a step does on this rank. `config` has the rank's layers, and the whole model's
    sizes. `ends`: of a pipeline stage, or of a head that drafts. `places`: each layer's KV group,
    and its place in the group's blocks; None: all layers are in one group. `adapted`: what adapters
    may change; None: nothing. `taps`: take residuals out of it."""
    # A layer's attention to an encoder, if it has one, lies where its own does.
    places = (*(places or _in_one_group(config)),) * (2 if config.encoder_rows else 1)
    phases = [*_phases(config, weights, split, ends, adapted=adapted, taps=taps)]
    if weights.head is not None:
        logits = _logits(config, weights.head, weights.norm)
        if adapted is not None:
            logits = adapted.of_end(logits, HEAD)
        phases.append(split.logits(logits))
    elif ends is not None:
        phases += ends.end()
    low_rank = None if adapted is None else adapted.targets()
    return Program(tuple(_placed(phases, places)), config.vocab_size, low_rank)


def _in_one_group(config: ModelConfig) -> Sequence[tuple[int, int]]:
    layout = one_group(config.num_layers, layers_that_read(config))
    return layout.places(range(config.num_layers))


def _placed(phases: Iterable[Phase], places: Sequence[tuple[int, int]]) -> Iterator[Phase]:
    for phase in phases:
        attention = phase.attention
        if attention is None:
            yield phase
        else:
            group, place = places[attention.layer]
            yield replace(phase, attention=replace(attention, group=group, place=place))


def compile_rows(
    config: ModelConfig,
    weights: ModelWeights,
    *,
    whole: bool = False,
    both_ways: bool = False,
    adapted: AdaptedPhases | None = None,
) -> Program:
    """Returns what a step of a model does whose rows after the last norm are wanted instead of
    logits. whole: it is an encoder's, which keeps nothing of an input beyond the step. both_ways:
    attention looks ahead, too. adapted: as of compile_program."""
    found = _phases(config, weights, whole=whole, both_ways=both_ways, adapted=adapted)
    if not whole:
        found = _placed(found, _in_one_group(config))
    phases = (*found, rows_phase(config.hidden_size, weights.norm))
    low_rank = None if adapted is None else adapted.targets()
    return Program(phases, config.vocab_size, low_rank)


def rows_phase(width: int, norm: NormWeights | None = None) -> Phase:
    """The last phase of a program that gives rows of the residual."""
    return Phase(kind=PhaseKind.ROWS, width=width, norm=norm, waits=False)


def _phases(
    config: ModelConfig,
    weights: ModelWeights,
    split: Split = WHOLE,
    ends: ProgramEnds | None = None,
    *,
    whole: bool = False,
    both_ways: bool = False,
    adapted: AdaptedPhases | None = None,
    taps: CPUTaps | None = None,
) -> Iterator[Phase]:
    """Everything but what is made of the last layer's rows."""
    if weights.embedding is not None:
        embed = Phase(
            kind=PhaseKind.EMBED,
            matrices=(weights.embedding,),
            scale=config.embedding_multiplier,
        )
        yield from split.embedded(embed if adapted is None else adapted.of_end(embed, EMBEDDING))
    elif ends is not None:
        yield from ends.begin()
    if weights.positions is not None:
        yield Phase(kind=PhaseKind.LOOK_UP, matrices=(weights.positions,))
    if weights.embedding_norm is not None:
        width, norm = config.hidden_size, weights.embedding_norm
        yield Phase(kind=PhaseKind.NORM, width=width, norm=norm)
    if weights.embedding is not None:
        yield from taken(config)
    if weights.layer_inputs is not None:
        yield from inputs_of_layers(config, weights.layer_inputs)
    if weights.streams is not None and config.streams is not None:
        yield from begun(config, config.streams, weights.streams)
    if taps is not None:
        yield from taps.behind(0)
    kinds: list[Attention] = []
    for number, layer in enumerate(_at_their_states(weights.layers)):
        spec = config.layer(number)
        attention = _attention(config, spec, layer, weights.rotations, number, split)
        if whole:
            attention = _sharing(replace(attention, both_ways=both_ways), kinds)
        kind = _kind(layer)
        phases = kind(config, spec, layer, attention, _experts(spec, layer), split).phases()
        if adapted is not None:
            phases = adapted.of_layer(phases, layer, number)
        all_phases = [*finished(phases, config, number, layer)]
        if weights.embedding is not None:
            all_phases += tapped(config, number)
        *others, last = all_phases
        yield from others
        yield replace(last, ends_layer=True)
        if taps is not None:
            yield from taps.behind(number + 1)
    if weights.streams is not None and config.streams is not None:
        yield from ended(config, config.streams, weights.streams)


def _kind(weights: LayerWeights) -> type[LayerPhases]:
    if weights.cross is not None:
        return CrossLayerPhases
    if weights.beside_embedding:
        return HeadLayerPhases
    if weights.streams is not None:
        return StreamLayerPhases
    if weights.beside is not None:
        return BesideLayerPhases
    if weights.recurrent is not None:
        return RecurrentLayerPhases
    return LayerPhases if weights.latent is None else LatentLayerPhases


def _at_their_states(layers: Sequence[LayerWeights]) -> Iterator[LayerWeights]:
    """Yields the layers; those that are recurrent with their places among a sequence's states."""
    state = last = 0
    for layer in layers:
        weights = layer.recurrent
        if weights is None:
            yield layer
            continue
        placed = replace(weights.layer, state=state, last=last)
        yield replace(layer, recurrent=replace(weights, layer=placed))
        state, last = state + placed.state_numbers, last + placed.width


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
    """Attention of an encoder's layer: layers with the same attention share the memory of keys and
    values. `kinds`: those that have been met; a new one is added."""
    for known in kinds:
        same_reach = known.window == attention.window and known.head_dim == attention.head_dim
        if known.rotation is attention.rotation and same_reach:
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
    heads, kv_heads = split.own_heads(config)
    own = config.kv_heads(number)
    return Attention(
        layer=number,
        heads=len(heads),
        kv_heads=len(kv_heads) if rule.kv_heads is None else own.count,
        head_dim=own.size,
        latent_dim=None if rule.latent is None else rule.latent.rank,
        rotation=None if rule.rope is None or not spec.attends else rotations[rule.rope],
        scale=rule.scale,
        soft_cap=rule.soft_cap,
        window=rule.window,
        chunk=config.encoder_rows or rule.chunk,
        sinks=weights.sinks,
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
        sum_floor=said.sum_floor,
        weighs_input=said.weighs_input,
        groups=said.groups,
        active_groups=said.active_groups,
        group_best=said.group_best,
        correction=stored.correction,
        scales=stored.scales,
    )


@dataclass(frozen=True)
class BesideLayerPhases(LayerPhases):
    """Both read the residual, each by norms of its own, and so does the router. No ranks share such
    a layer."""

    def _fed(self) -> Iterator[Phase]:
        norms, experts, weights = self.weights.beside, self.weights.experts, self.weights
        if norms is None or experts is None or weights.gate is None:
            raise ValueError("no program has such a layer of experts")
        yield self._input(norms.router, experts.router)
        yield self._scores(experts.router)
        yield self._input(norms.experts, *experts.gates, *experts.ups)
        yield self._route(experts)
        yield self._experts_up(experts)
        yield Phase(kind=PhaseKind.EXPERTS_DOWN, experts=self.experts)
        yield Phase(kind=PhaseKind.COMBINE, target=Buffer.RESULT, experts=self.experts, adds=False)
        yield self._over(PhaseKind.NORM, Buffer.RESULT, Buffer.RESULT, norms.experts_output)
        yield from self._dense()
        # Attention has no more use for MIXED.
        yield self._over(PhaseKind.ADD_NORM, Buffer.MIXED, Buffer.RESULT, norms.dense_output)
        last = weights.feed_forward_output_norm
        yield self._over(PhaseKind.ADD_NORM, Buffer.RESULT, Buffer.RESIDUAL, last)

    def _dense(self) -> Iterator[Phase]:
        """The feed-forward, as MIXED before its norm."""
        weights = self.weights
        if weights.gate is None or weights.up is None or weights.down is None:
            raise ValueError("the feed-forward beside experts is gated")
        yield self._input(weights.feed_forward_norm, weights.gate, weights.up)
        yield self._gated_up()
        yield product_into(weights.down, Buffer.MIXED, source=Buffer.INNER)

    def _over(
        self, kind: PhaseKind, source: Buffer, target: Buffer, norm: NormWeights | None
    ) -> Phase:
        width, scale = self.config.hidden_size, 1.0
        if kind is PhaseKind.ADD_NORM and target is Buffer.RESIDUAL:
            scale = self.spec.residual_multiplier
        return Phase(kind=kind, source=source, target=target, width=width, norm=norm, scale=scale)


@dataclass(frozen=True)
class HeadLayerPhases(LayerPhases):
    """A layer whose attention reads both normed vectors side by side, which are in MIXED."""

    def _attention(self) -> Iterator[Phase]:
        if self.spec.order != "pre" or self.weights.output_gate is not None:
            raise ValueError("no program has such a layer of a head")
        yield Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.MIXED,
            target=Buffer.INPUT,
            width=self.config.attention_inputs,
            forms=forms_of(*self._heads_matrices()),
        )
        yield self._heads()
        yield from self._placed()
        yield from self._attended()


@dataclass(frozen=True)
class RecurrentLayerPhases(LayerPhases):
    """A recurrent layer, which one rank has as a whole."""

    def _attention(self) -> Iterator[Phase]:
        weights = self._recurrent
        layer, matrices = weights.layer, [matrix for matrix, _ in weights.products]
        yield self._input(self.weights.attention_norm, *matrices)
        for number, (matrix, first) in enumerate(weights.products):
            yield Phase(
                kind=PhaseKind.PRODUCT,
                source=Buffer.INPUT,
                target=Buffer.QUERIES,
                matrices=(matrix,),
                adds=False,
                part=True,
                first=first,
                width=weights.features,
                # Products of one input into columns of their own needn't wait for each other.
                waits=number == len(weights.products) - 1,
            )
        if layer.kind is not RecurrentKind.SHORT_CONV:
            yield Phase(kind=PhaseKind.CONVOLVE, source=Buffer.QUERIES, recurrent=layer)
        yield Phase(
            kind=PhaseKind.SCAN, source=Buffer.QUERIES, target=Buffer.MIXED, recurrent=layer
        )
        yield Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.MIXED,
            target=Buffer.INPUT,
            width=layer.width,
            recurrent=layer,
            forms=forms_of(self.weights.output),
            waits=False,
        )

    @property
    def _recurrent(self) -> RecurrentWeights:
        if self.weights.recurrent is None:
            raise ValueError("a layer that isn't recurrent has no such weights")
        return self.weights.recurrent
