"""Compiles a model's description into the program that the CPU kernels run. Once, at load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from penstock.model.config import ModelConfig
from penstock.model.kv_layout import layers_that_read, one_group
from penstock.model.layer_spec import LayerSpec
from penstock_kernels.cpu.operands import Attention, Experts, NormWeights, RotationTable
from penstock_kernels.cpu.program import Phase, PhaseKind, Program, only_wanted
from penstock_worker.adapters.adaptable import HEAD
from penstock_worker.forward.cpu.adapters import AdaptedPhases
from penstock_worker.forward.cpu.aux_hidden import CPUAuxHidden
from penstock_worker.forward.cpu.compressed_layers import (
    CompressedLayerPhases,
    MixingLayerPhases,
    read_residuals,
    spread,
)
from penstock_worker.forward.cpu.cross_layers import CrossLayerPhases
from penstock_worker.forward.cpu.embedding import embedded
from penstock_worker.forward.cpu.latent_layers import (
    BlockLayerPhases,
    LatentLayerPhases,
    index_shape,
    keys_read,
)
from penstock_worker.forward.cpu.layer_kinds import (
    AttentionBesidePhases,
    BesideLayerPhases,
    HeadLayerPhases,
    RecurrentLayerPhases,
    StreamLayerPhases,
    begun,
    ended,
    finished,
    inputs_of_layers,
)
from penstock_worker.forward.cpu.layers import LatentExpertsPhases, LayerPhases
from penstock_worker.forward.cpu.media import deepstack, taken
from penstock_worker.forward.cpu.split import WHOLE, Split
from penstock_worker.forward.cpu.weights import LayerWeights, ModelWeights


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
    aux_hidden: CPUAuxHidden | None = None,
    *,
    rows: bool = False,
) -> Program:
    """Returns what a step does on this rank. `config` has the rank's layers, and the whole model's
    sizes. `ends`: of a pipeline stage, or of a head that drafts. `places`: each layer's KV group,
    and its place in the group's blocks; None: all layers are in one group. `adapted`: what adapters
    may change; None: nothing. `aux_hidden`: takes residuals out of it. `rows`: those after the
    last norm are wanted instead of logits."""
    # A layer's attention to an encoder, if it has one, lies where its own does.
    places = (*(places or _in_one_group(config)),) * (2 if config.encoder_rows else 1)
    model = _Model(config, weights, split, ends, adapted, aux_hidden)
    phases = model.phases((*TO_LAST_LAYER, _rows if rows else _logits))
    return model.program(_placed(phases, places))


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


def compile_encoder(
    config: ModelConfig,
    weights: ModelWeights,
    seeing: Callable[[Attention], Attention],
    adapted: AdaptedPhases | None = None,
) -> Program:
    """Returns what a step of an encoder does, which gives rows after the last norm, and keeps
    nothing of an input beyond the step. seeing: maps a layer's attention to that with what only
    encoders have: it looks ahead, or knows distances. adapted: as of compile_program."""
    model = _Model(config, weights, adapted=adapted, seeing=seeing)
    return model.program(model.phases((*TO_LAST_LAYER, _rows)))


def rows_phase(width: int, norm: NormWeights | None = None) -> Phase:
    """The last phase of a program that gives rows of the residual."""
    return Phase(kind=PhaseKind.ROWS, width=width, norm=norm, waits=False)


@dataclass(frozen=True)
class _Model:
    """What a program is compiled from."""

    config: ModelConfig
    weights: ModelWeights
    split: Split = WHOLE
    ends: ProgramEnds | None = None
    adapted: AdaptedPhases | None = None
    aux_hidden: CPUAuxHidden | None = None
    seeing: Callable[[Attention], Attention] | None = None
    """Adds what only an encoder's attention has (see compile_encoder); None: it is a decoder."""
    in_memory: list[Attention] = field(default_factory=list)
    """Attention of each kind that layers of an encoder have (see _sharing)."""

    def phases(self, makers: Iterable[PhaseMaker]) -> Iterator[Phase]:
        for maker in makers:
            yield from maker(self)

    def program(self, phases: Iterable[Phase]) -> Program:
        # Adapters' targets are known once all phases are made.
        made = tuple(phases)
        low_rank = None if self.adapted is None else self.adapted.targets()
        return Program(tuple(only_wanted(made)), self.config.vocab_size, low_rank)


PhaseMaker = Callable[[_Model], Iterable[Phase]]
"""Makes the phases of one part of a program; none where the model, or the rank, hasn't the part."""


def _embedding(model: _Model) -> Iterable[Phase]:
    if model.weights.embedding is None:
        return () if model.ends is None else model.ends.begin()
    return embedded(model.config, model.weights, model.split, model.adapted)


def _media_rows(model: _Model) -> Iterable[Phase]:
    return () if model.weights.embedding is None else taken(model.config)


def _layer_inputs(model: _Model) -> Iterable[Phase]:
    weights = model.weights.layer_inputs
    return () if weights is None else inputs_of_layers(model.config, weights)


def _streams_begun(model: _Model) -> Iterable[Phase]:
    spec, weights = model.config.streams, model.weights.streams
    return () if spec is None or weights is None else begun(model.config, spec, weights)


def _residuals_spread(model: _Model) -> Iterable[Phase]:
    mixing = model.weights.mixing
    if mixing is None or model.weights.embedding is None:
        return ()  # What stands before the layer of a head makes the residuals.
    return spread(model.config, mixing)


def _residuals_read(model: _Model) -> Iterable[Phase]:
    mixing = model.weights.mixing
    return () if mixing is None else read_residuals(model.config, mixing)


def _aux_of_embeddings(model: _Model) -> Iterable[Phase]:
    return () if model.aux_hidden is None else model.aux_hidden.behind(0)


def _layers(model: _Model) -> Iterator[Phase]:
    for number, weights in enumerate(_at_their_states(model.weights.layers)):
        phases = _layer(model, number, weights)
        for part in LAYER_PARTS:
            phases = part(model, phases, number, weights)
        yield from phases


def _streams_ended(model: _Model) -> Iterable[Phase]:
    spec, weights = model.config.streams, model.weights.streams
    return () if spec is None or weights is None else ended(model.config, spec, weights)


def _logits(model: _Model) -> Iterable[Phase]:
    config, weights = model.config, model.weights
    if weights.head is None:
        return () if model.ends is None else model.ends.end()
    logits = Phase(
        kind=PhaseKind.LOGITS,
        matrices=(weights.head,),
        norm=weights.norm,
        scale=config.logits_multiplier,
        soft_cap=config.logits_soft_cap,
        waits=False,
    )
    if model.adapted is not None:
        logits = model.adapted.of_end(logits, HEAD)
    return (model.split.logits(logits),)


def _rows(model: _Model) -> Iterable[Phase]:
    return (rows_phase(model.config.hidden_size, model.weights.norm),)


TO_LAST_LAYER: tuple[PhaseMaker, ...] = (
    _embedding,
    _media_rows,
    _layer_inputs,
    _streams_begun,
    _residuals_spread,
    _aux_of_embeddings,
    _layers,
    _streams_ended,
    _residuals_read,
)
"""A program in order, but for what is made of the last layer's rows."""


def _layer(model: _Model, number: int, weights: LayerWeights) -> Iterator[Phase]:
    """A layer's own phases."""
    config, spec = model.config, model.config.layer(number)
    if spec.residual_norm:
        yield Phase(kind=PhaseKind.NORM, width=config.hidden_size, norm=model.weights.norm)
    attention = _attention(config, spec, weights, model.weights.rotations, number, model.split)
    if model.seeing is not None:
        attention = _sharing(model.seeing(attention), model.in_memory)
    kind = next(kind for has, kind in LAYER_KINDS if has(weights))
    made = kind(config, spec, weights, attention, _experts(spec, weights), model.split)
    yield from made.phases()


LayerPart = Callable[[_Model, Iterator[Phase], int, LayerWeights], Iterator[Phase]]
"""Maps the phases of a layer with this number and these weights to those with one more part."""


def _adapted(
    model: _Model, phases: Iterator[Phase], number: int, weights: LayerWeights
) -> Iterator[Phase]:
    if model.adapted is None:
        return phases
    repeated = model.config.layer(number).repeats
    return model.adapted.of_layer(phases, weights, number if repeated is None else repeated)


def _finished(
    model: _Model, phases: Iterator[Phase], number: int, weights: LayerWeights
) -> Iterator[Phase]:
    return finished(phases, model.config, number, weights)


def _deepstack_of_layer(
    model: _Model, phases: Iterator[Phase], number: int, weights: LayerWeights
) -> Iterator[Phase]:
    yield from phases
    if model.weights.embedding is not None:
        yield from deepstack(model.config, number)


def _counted(
    model: _Model, phases: Iterator[Phase], number: int, weights: LayerWeights
) -> Iterator[Phase]:
    *others, last = phases
    yield from others
    yield replace(last, ends_layer=True)


def _aux_of_layer(
    model: _Model, phases: Iterator[Phase], number: int, weights: LayerWeights
) -> Iterator[Phase]:
    yield from phases
    if model.aux_hidden is not None:
        yield from model.aux_hidden.behind(number + 1)


LAYER_PARTS: tuple[LayerPart, ...] = (
    _adapted,
    _finished,
    _deepstack_of_layer,
    _counted,
    _aux_of_layer,
)
"""What is added to a layer's phases, in order."""


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


def _sharing(attention: Attention, kinds: list[Attention]) -> Attention:
    """Attention of an encoder's layer: layers with the same attention share the memory of keys and
    values. `kinds`: those that have been met; a new one is added."""
    if attention.distances is not None:  # Of this layer alone; the others' memory is as large.
        return replace(attention, place=0)
    for known in kinds:
        same_window = known.window == attention.window and known.head_dim == attention.head_dim
        if known.rotation is attention.rotation and same_window:
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
        heads=rule.query_heads or len(heads),
        kv_heads=len(kv_heads) if rule.kv_heads is None else own.count,
        head_dim=own.size,
        latent_dim=None if rule.latent is None else rule.latent.rank,
        rotation=None if rule.rope is None or not spec.attends else rotations[rule.rope],
        scale=rule.scale,
        soft_cap=rule.soft_cap,
        window=rule.window,
        chunk=config.encoder_rows or rule.chunk,
        most=keys_read(rule),
        index=index_shape(rule),
        sinks=weights.sinks,
        entries=None if weights.compressed is None else weights.compressed.entries,
        causal=config.ignores_spans(rule),
        norms_behind=rule.norm_behind,
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
        scoring=said.router,
        normalised=said.normalised,
        scale=said.scale,
        sum_floor=said.sum_floor,
        nearness=said.nearness,
        weighs_input=said.weighs_input,
        groups=said.groups,
        active_groups=said.active_groups,
        group_best=said.group_best,
        correction=stored.correction,
        scales=stored.scales,
        by_token=stored.by_token,
    )


LAYER_KINDS: tuple[tuple[Callable[[LayerWeights], bool], type[LayerPhases]], ...] = (
    (lambda weights: weights.cross is not None, CrossLayerPhases),
    (lambda weights: weights.beside_embedding, HeadLayerPhases),
    (lambda weights: weights.streams is not None, StreamLayerPhases),
    (lambda weights: weights.compressed is not None, CompressedLayerPhases),
    (lambda weights: weights.mixing is not None, MixingLayerPhases),
    (lambda weights: weights.beside is not None, BesideLayerPhases),
    (lambda weights: weights.recurrent_output is not None, AttentionBesidePhases),
    (lambda weights: weights.recurrent is not None, RecurrentLayerPhases),
    (lambda weights: weights.latent is not None, LatentLayerPhases),
    (lambda weights: weights.blocks is not None, BlockLayerPhases),
    (lambda weights: weights.experts_over_latents, LatentExpertsPhases),
    (lambda weights: True, LayerPhases),
)
"""Kinds of layers; the first one whose weights a layer has is its own."""
