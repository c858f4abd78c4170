"""What all backends that compute layers themselves have beyond Llama's."""

from __future__ import annotations

from penstock.model import mechanisms as mechanism

COMMON = frozenset(
    {
        mechanism.WINDOW,
        mechanism.CHUNKS,
        mechanism.SCORE_SOFT_CAP,
        mechanism.SCORE_SCALE,
        mechanism.SINKS,
        mechanism.LATENT,
        mechanism.NO_ROTATION,
        mechanism.PARTIAL_ROTATION,
        mechanism.SEVERAL_ROTATIONS,
        mechanism.WHOLE_NORM,
        mechanism.LAYER_NORM,
        mechanism.OUTPUT_NORMS,
        mechanism.PARALLEL,
        mechanism.GELU,
        mechanism.GELU_TANH,
        mechanism.QUICK_GELU,
        mechanism.RELU2,
        mechanism.CLAMPED_SWIGLU,
        mechanism.UNGATED,
        mechanism.OUTPUT_BIAS,
        mechanism.FEED_FORWARD_BIAS,
        mechanism.RESIDUAL_MULTIPLIER,
        mechanism.EMBEDDING_MULTIPLIER,
        mechanism.LOGITS_RULE,
        mechanism.EXPERTS,
        mechanism.LATENT_EXPERTS,
        mechanism.SHARED_EXPERT_GATE,
        mechanism.WEIGHED_INPUTS,
        mechanism.QUERY_GROWTH,
        mechanism.EMBEDDING_NORM,
        mechanism.NO_FIRST_NORM,
        mechanism.OUTPUT_GATE,
        mechanism.EXPERTS_FLOOR,
        mechanism.ONE_HALF,
        mechanism.OWN_HEADS,
        mechanism.VALUE_NORM,
        mechanism.VALUES_OF_KEYS,
        mechanism.SHARED_KV,
        mechanism.OWN_INNER,
        mechanism.SPARSE_GATE,
        mechanism.EXPERTS_BESIDE,
        mechanism.OUTPUT_SCALE,
        mechanism.PER_LAYER_INPUTS,
        mechanism.STREAMS,
        *mechanism.RECURRENT,
        mechanism.VISION,
        mechanism.WHOLE_SPANS,
        mechanism.WINDOWED_SPANS,
        mechanism.DEEPSTACK,
        mechanism.AUDIO,
        mechanism.CROSS_ATTENTION,
        mechanism.LEARNED_POSITIONS,
    }
)
"""A mechanism belongs here once the last of these backends has it. Until then, those that have it
add it in their own MECHANISMS: a backend never gets a model that needs what it doesn't name."""
