"""What a model needs from a backend beyond Llama's layers.

A backend lists what it has. A model that needs more is computed by another one, or refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig, TransformersConfig
from penstock.model.layer_spec import SUM_FLOOR, FeedForwardSpec, LayerSpec
from penstock.model.recurrent_spec import (
    GatedDeltaSpec,
    Mamba1Spec,
    Mamba2Spec,
    RecurrentSpec,
    ShortConvSpec,
)

WINDOW = "sliding windows"
CHUNKS = "attention within chunks of positions"
SCORE_SOFT_CAP = "a soft cap of attention scores"
SCORE_SCALE = "an attention scale of its own"
LATENT = "attention over latents (MLA)"
CHOSEN_TOKENS = "an index that chooses the tokens that attention reads"
SHARED_CHOICE = "layers that read the tokens that another one has chosen"
CHOSEN_BLOCKS = "an index that chooses the blocks of tokens that attention reads"
COMPRESSED = "attention to entries that stand for several tokens"
SINKS = "attention sinks"
OUTPUT_GATE = "a gate of the attention's output"
HEAD_GATE = "a gate of each head's output"
SOFT_GATE = "gates of heads by a softplus"
QKV_BOUND = "bounds of queries, keys and values"
NO_ROTATION = "layers without rotary positions"
PARTIAL_ROTATION = "heads that rotate in part"
SEVERAL_ROTATIONS = "several rotary embeddings"
WHOLE_NORM = "norms over all heads"
NORM_BEHIND = "norms of heads behind the rotation"
LAYER_NORM = "layer norms"
OUTPUT_NORMS = "norms behind attention and feed-forward"
SUMMED_NORMS = "norms of the sums with the residual"
SUB_NORMS = "norms of what heads and feed-forwards give, before they are projected"
PARALLEL = "attention and feed-forward in parallel"
GELU = "gelu"
GELU_TANH = "gelu by tanh"
QUICK_GELU = "gelu by a sigmoid"
RELU = "relu"
XIELU = "an activation with learned coefficients (xIELU)"
RELU2 = "squared relu"
CLAMPED_SWIGLU = "a clamped swiglu"
LIMITED_INNER = "bounds of a feed-forward's gate and of what it weighs"
LIMITED_GATE = "bounds of a feed-forward's gate before its activation"
UNGATED = "a feed-forward without a gate"
OUTPUT_BIAS = "a bias of the attention's output"
FEED_FORWARD_BIAS = "biases of the feed-forward"
RESIDUAL_MULTIPLIER = "a residual multiplier"
EMBEDDING_MULTIPLIER = "an embedding multiplier"
LOGITS_RULE = "a multiplier, cap or bias of logits"
EXPERTS = "a mixture of experts"
LATENT_EXPERTS = "experts over latents"
SQRT_SOFTPLUS = "scores of experts by the root of a softplus"
SPARSE_MIXER = "experts that are weighed among those near the best"
EXPERTS_BY_TOKEN = "experts that a token's id chooses"
EXPERTS_FLOOR = "a floor of the sum of experts' weights"
SHARED_EXPERT_GATE = "a gate of the shared expert"
WEIGHED_INPUTS = "experts whose inputs are weighed"
EMBEDDING_NORM = "a norm of embeddings"
NO_FIRST_NORM = "a layer without a norm before attention"
SHORT_CONV = "recurrent layers of short convolutions"
GATED_DELTA = "recurrent layers of gated delta nets"
CHANNEL_DECAY = "gated delta nets whose channels decay each by itself"
BOUNDED_DECAY = "gated delta nets whose decays have a bound"
OVERSHOOTING = "gated delta nets whose corrections overshoot, or with a norm of their own"
MAMBA1 = "recurrent layers of Mamba 1"
MAMBA2 = "recurrent layers of Mamba 2"
BESIDE_ATTENTION = "recurrent layers beside attention"
UNNORMED_MAMBA2 = "Mamba 2 without a norm"
ONE_HALF = "layers of attention or feed-forward alone"
QUERY_GROWTH = "queries that grow with their position"
OWN_HEADS = "heads whose sizes differ between layers"
QUERY_HEADS = "query heads whose number differs between layers"
VALUE_NORM = "norms of values"
VALUES_OF_KEYS = "values that are made of keys"
SHORT_VALUES = "values that are shorter than keys"
SHARED_KV = "layers that read another one's keys and values"
OWN_INNER = "feed-forwards whose sizes differ between layers"
SPARSE_GATE = "a feed-forward whose gate is mostly zero"
EXPERTS_BESIDE = "experts beside a feed-forward"
OUTPUT_SCALE = "a factor of a layer's output"
REPEATED = "layers that are computed several times"
RESIDUAL_NORM = "norms of the residual between layers"
PER_LAYER_INPUTS = "an input of each layer's own"
STREAMS = "several residuals (AltUp)"
HYPER_CONNECTIONS = "several residuals (hyper-connections)"
VISION = "a tower that sees"
WHOLE_SPANS = "pictures whose rows see one another"
WINDOWED_SPANS = "pictures whose rows see one another in layers with a window alone"
DEEPSTACK = "rows that are added behind the first layers (DeepStack)"
AUDIO = "a tower that hears"
CROSS_ATTENTION = "attention to an encoder's output"
PICTURE_LAYERS = "layers that attend to pictures alone"
LEARNED_POSITIONS = "a table of positions"
TOKEN_TYPES = "a table of token types"
SMALL_EMBEDDINGS = "embeddings that are smaller than the layers' rows"
NO_LAST_NORM = "no norm after the last layer"
DISTANCES = "scores that say how far query and key are apart"
CONVOLUTION = "a convolution of embeddings behind the first layer"
BY_TRANSFORMERS = "layers that only transformers' code describes"

_ACTIVATIONS = {
    "gelu": GELU,
    "gelu_tanh": GELU_TANH,
    "quick_gelu": QUICK_GELU,
    "relu": RELU,
    "relu2": RELU2,
    "clamped_swiglu": CLAMPED_SWIGLU,
    "xielu": XIELU,
}
_RECURRENT: dict[type[RecurrentSpec], str] = {
    ShortConvSpec: SHORT_CONV,
    GatedDeltaSpec: GATED_DELTA,
    Mamba2Spec: MAMBA2,
    Mamba1Spec: MAMBA1,
}
RECURRENT = frozenset(_RECURRENT.values())
OF_ENCODERS = frozenset(
    {SUMMED_NORMS, TOKEN_TYPES, SMALL_EMBEDDINGS, NO_LAST_NORM, DISTANCES, CONVOLUTION, RELU}
)
"""What only encoders have."""
OF_PICTURES = frozenset({VISION, WHOLE_SPANS, WINDOWED_SPANS, DEEPSTACK})
"""What a model needs for pictures only."""


def mechanisms(config: ModelConfig) -> frozenset[str]:
    """Returns the names of what the model needs."""
    return frozenset(_of_model(config))


def _of_model(config: ModelConfig) -> Iterator[str]:
    if isinstance(config, TransformersConfig):
        yield BY_TRANSFORMERS
        return
    if config.norm.kind == "layer":
        yield LAYER_NORM
    if any(rope.dims < config.head_dim for rope in config.ropes):
        yield PARTIAL_ROTATION
    if len(config.ropes) > 1:
        yield SEVERAL_ROTATIONS
    if any(rope.query_growth for rope in config.ropes):
        yield QUERY_GROWTH
    if config.embedding_norm:
        yield EMBEDDING_NORM
    if config.embedding_multiplier != 1.0:
        yield EMBEDDING_MULTIPLIER
    if config.logits_multiplier != 1.0 or config.logits_soft_cap is not None or config.head_bias:
        yield LOGITS_RULE
    if config.per_layer_inputs is not None:
        yield PER_LAYER_INPUTS
    if config.streams is not None:
        yield STREAMS
    if config.hyper_connections is not None:
        yield HYPER_CONNECTIONS
    if config.vision is not None:
        yield VISION
        if config.vision.spans_whole:
            yield WHOLE_SPANS
        if config.vision.windowed_spans:
            yield WINDOWED_SPANS
        if config.vision.added_behind:
            yield DEEPSTACK
    if config.audio is not None:
        yield AUDIO
    if config.cross_attention is not None:
        yield CROSS_ATTENTION
    if config.learned_positions:
        yield LEARNED_POSITIONS
    if config.token_types:
        yield TOKEN_TYPES
    if config.embedding_size:
        yield SMALL_EMBEDDINGS
    if not config.final_norm:
        yield NO_LAST_NORM
    if config.relative_buckets or config.distance_slopes or config.disentangled is not None:
        yield DISTANCES
    if config.disentangled is not None and config.disentangled.convolution:
        yield CONVOLUTION
    for layer in set(config.layers):
        yield from _of_layer(layer)


def _of_layer(layer: LayerSpec) -> Iterator[str]:
    if layer.recurrent is not None:
        yield _RECURRENT[type(layer.recurrent)]
        if isinstance(layer.recurrent, Mamba2Spec) and not layer.recurrent.normed:
            yield UNNORMED_MAMBA2
        if isinstance(layer.recurrent, GatedDeltaSpec):
            yield from _of_gated_delta(layer.recurrent)
        if layer.attends_beside:
            yield BESIDE_ATTENTION
    if layer.attends:
        yield from _of_attention(layer.attention)
    if layer.halves != "mixer":
        yield from _of_feed_forward(layer.feed_forward)
    if layer.halves != "both":
        yield ONE_HALF
    if layer.order in ("post", "sandwich"):
        yield OUTPUT_NORMS
    if layer.order == "summed":
        yield SUMMED_NORMS
    if layer.order == "parallel":
        yield PARALLEL
    if not layer.first_norm:
        yield NO_FIRST_NORM
    if layer.residual_multiplier != 1.0:
        yield RESIDUAL_MULTIPLIER
    if layer.output_scale:
        yield OUTPUT_SCALE
    if layer.repeats is not None:
        yield REPEATED
    if layer.residual_norm:
        yield RESIDUAL_NORM


def _of_gated_delta(spec: GatedDeltaSpec) -> Iterator[str]:
    if spec.by_channel:
        yield CHANNEL_DECAY
    if spec.lowest:
        yield BOUNDED_DECAY
    if spec.strongest != 1.0 or spec.norm_eps is not None:
        yield OVERSHOOTING


def _of_attention(spec: AttentionSpec) -> Iterator[str]:
    said = {
        WINDOW: spec.window is not None,
        CHUNKS: spec.chunk is not None,
        SCORE_SOFT_CAP: spec.soft_cap is not None,
        SCORE_SCALE: spec.scale is not None,
        LATENT: spec.latent is not None,
        CHOSEN_TOKENS: spec.index is not None,
        SHARED_CHOICE: spec.index is not None and spec.index.shared,
        CHOSEN_BLOCKS: spec.blocks is not None,
        COMPRESSED: spec.compressed is not None,
        SINKS: spec.sinks,
        OUTPUT_GATE: spec.output_gate,
        HEAD_GATE: spec.head_gate,
        SOFT_GATE: spec.head_gate and spec.soft_gate,
        NO_ROTATION: spec.rope is None,
        WHOLE_NORM: spec.norm == "whole",
        NORM_BEHIND: spec.norm_behind,
        OUTPUT_BIAS: spec.output_bias,
        OWN_HEADS: spec.kv_heads is not None,
        QUERY_HEADS: spec.query_heads is not None,
        VALUE_NORM: spec.value_norm,
        VALUES_OF_KEYS: spec.values_of_keys,
        SHORT_VALUES: spec.value_size is not None,
        SHARED_KV: spec.reads is not None,
        SUB_NORMS: spec.sub_norm,
        PICTURE_LAYERS: spec.sees_pictures,
        QKV_BOUND: spec.qkv_bound is not None,
    }
    yield from (name for name, needed in said.items() if needed)


def _of_feed_forward(spec: FeedForwardSpec) -> Iterator[str]:
    if spec.activation in _ACTIVATIONS:
        yield _ACTIVATIONS[spec.activation]
    if not spec.gated:
        yield UNGATED
    if spec.gate_limit is not None:
        yield LIMITED_GATE
    if spec.bias:
        yield FEED_FORWARD_BIAS
    if spec.limit is not None or (spec.experts is not None and spec.experts.limit is not None):
        yield LIMITED_INNER
    if spec.experts is not None:
        yield EXPERTS
        if spec.experts.normalised and spec.experts.sum_floor != SUM_FLOOR:
            yield EXPERTS_FLOOR
        if spec.experts.router == "sqrt_softplus":
            yield SQRT_SOFTPLUS
        if spec.experts.router == "sparse_mixer":
            yield SPARSE_MIXER
        if spec.experts.by_token:
            yield EXPERTS_BY_TOKEN
        if spec.experts.latent:
            yield LATENT_EXPERTS
        if spec.experts.shared_gate:
            yield SHARED_EXPERT_GATE
        if spec.experts.weighs_input:
            yield WEIGHED_INPUTS
        if spec.experts.beside or spec.experts.expert_scales:
            yield EXPERTS_BESIDE
    if spec.inner is not None:
        yield OWN_INNER
    if spec.sparsity:
        yield SPARSE_GATE
    if spec.sub_norm:
        yield SUB_NORMS
