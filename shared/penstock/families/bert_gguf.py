"""What the readers of GGUF files of BERT's relatives have in common: those whose files name an
architecture of their own.

Source of the keys: the GGUF specification, and llama.cpp's converter for these models.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.tensor_names import QKV, TensorNames

BERT_FILES = "bert"
"""What files of BERT name as their architecture, and those of relatives without one of their
own."""
TYPES = "token_types.weight"
GGUF_NAMES = TensorNames(
    fused={"self_attn.qkv_proj": QKV, "mlp.up_proj": ("mlp.gate_proj", "mlp.up_proj")},
    stacked={
        f"mlp.stacked.{each}": (f"mlp.experts.*.{each}",) for each in ("up_proj", "down_proj")
    },
)
"""Gates lie in front of what they weigh, in one matrix, unless they have one of their own."""


def bert_sizes(model: GGUFMetadata) -> dict[str, Any]:
    """Returns arguments of bert_encoder. Raises UnsupportedModel for heads that don't make up the
    hidden size, or fewer of keys than of queries."""
    sizes = model.sizes()
    hidden, heads, dim = (sizes[each] for each in ("hidden_size", "num_heads", "head_dim"))
    if sizes["num_kv_heads"] != heads or heads * dim != hidden:
        raise UnsupportedModel(
            f"{model.keys.where}: {heads} heads of {dim} with {sizes['num_kv_heads']} for keys: "
            f"as many of each are served, which make up {hidden}"
        )
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads")
    types = model.tensors.get(TYPES)
    if types is not None and len(types.shape) != 2:
        raise UnsupportedModel(f"{model.keys.where}: the tensor {TYPES} is no matrix")
    return {
        **{each: sizes[each] for each in kept},
        "max_position": sizes["max_position"],
        "token_types": 0 if types is None else types.shape[0],
        "layer_norm_eps": model.layer_norm_eps(),
    }


def refuse_tensors(model: GGUFMetadata, *names: str, of: str) -> None:
    """Raises UnsupportedModel if the first layer has one of these tensors."""
    for name in names:
        if model.has(name):
            raise UnsupportedModel(f"{model.keys.where}: {of} (blk.0.{name}) is not served")
