"""Nanbeige 4.2: Llama's layers, all of which are computed several times, each time with keys and
values of their own; between these times the residual becomes the model's last norm of it.

Source: Nanbeige LLM Lab, "Nanbeige4.2-3B", 2026; what it computes, as llama.cpp's model nanbeige
has it.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.llama import LLAMA, read_gguf
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig

NOT_RELEASED = (
    "emb_neighbor_num",
    "enable_depth_attention",
    "enable_double_loop_split",
    "enable_h_res_identity",
    "enable_hyper_connection",
    "enable_mhc",
    "insert_ngram_layer_idx",
    "loop_loss_weights",
    "loop_middle_layers",
    "loop_share_kv",
    "ngram_insert_all_layers",
    "qk_layernorm",
)
"""What the makers' class of configurations knows, and no release has."""


def _looped(once: ModelConfig, keys: Fields) -> ModelConfig:
    """once: the model, if its layers were computed once."""
    loops, count = keys.integer("num_loops", 1), once.num_layers
    if not 1 <= loops <= bounds.MAX_LAYERS // count:
        raise UnsupportedModel(
            f"{keys.where}: num_loops is {loops}; 1 to {bounds.MAX_LAYERS // count} are allowed "
            f"with {count} layers"
        )
    between = not keys.flag("skip_loop_final_norm", False)
    layers = [
        msgspec.structs.replace(
            once.layer(number % count),
            repeats=number % count if number >= count else None,
            residual_norm=between and number >= count and number % count == 0,
        )
        for number in range(loops * count)
    ]
    return msgspec.structs.replace(
        once, architecture="nanbeige", num_layers=loops * count, layers=hub.shared(layers)
    )


def _hub(fields: Fields) -> ModelConfig:
    for key in NOT_RELEASED:
        if fields.values.get(key):
            raise fields.wrong(key, "null, false or an empty list")
    fields.ignore(*NOT_RELEASED)
    return _looped(LLAMA.read_hub(fields), fields)


def _gguf(model: GGUFMetadata) -> ModelConfig:
    hub.only(model.keys, expert_count=0)
    model.keys.ignore("attention.head_dim")  # key_length says the same
    return _looped(read_gguf(model), model.keys)


NANBEIGE = Family(
    "nanbeige",
    ("NanbeigeForCausalLM",),
    "Nanbeige 4.2",
    _hub,
    gguf="nanbeige",
    read_gguf=_gguf,
    gguf_names=TensorNames(pairs_adjacent=True),
)
