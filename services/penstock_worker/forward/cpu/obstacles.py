"""What of a model's layers the CPU kernels can't compute."""

from __future__ import annotations

from penstock.model.config import ModelConfig
from penstock.model.recurrent_spec import GatedDeltaSpec, Mamba2Spec
from penstock_kernels.cpu.recurrent import MAX_HEADS, MAX_KERNEL, MAX_KEY_DIM


def experts_obstacle(config: ModelConfig) -> str | None:
    """Returns which mixtures of experts the kernels can't compute, or None."""
    for layer in config.layers:
        experts = layer.feed_forward.experts
        if experts is not None and (experts.count > 1024 or experts.active > 64):
            return f"{experts.active} of {experts.count} experts; at most 64 of 1024 are supported"
        if experts is not None and experts.group_best > 2:
            return f"groups are scored by {experts.group_best} experts; 1 and 2 are possible"
        if experts is not None and experts.weighs_input and layer.feed_forward.bias:
            return "experts whose inputs are weighed have biases"
    return None


def recurrent_obstacle(config: ModelConfig) -> str | None:
    """Returns which recurrent layers the kernels can't compute, or None."""
    for spec in {layer.recurrent for layer in config.layers}:
        if spec is not None and spec.kernel > MAX_KERNEL:
            return f"a convolution of {spec.kernel} tokens; at most {MAX_KERNEL} are possible"
        heads, size = 1, 1
        if isinstance(spec, GatedDeltaSpec):
            heads, size = spec.value_heads, spec.key_dim
        elif isinstance(spec, Mamba2Spec):
            heads, size = spec.heads, spec.state
        if heads > MAX_HEADS or size > MAX_KEY_DIM:
            return (
                f"recurrent layers have {heads} heads with {size} numbers of the state for each"
                f" value; at most {MAX_HEADS} with {MAX_KEY_DIM} are possible"
            )
    return None
