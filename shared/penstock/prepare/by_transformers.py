"""The config.json of a decoder that no family describes, for transformers' own code.

Only what the other processes need is read of it: sizes. Source of the keys: the configuration
classes of the transformers library, and their attribute maps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.config.settings import ModelImpl
from penstock.errors import UnsupportedModel
from penstock.families.bounds import MAX_EXPERTS, MAX_LAYERS, layer_count
from penstock.families.eagle3 import is_eagle3
from penstock.families.finding import family_of_class
from penstock.families.gemma4_assistant import is_assistant
from penstock.families.served import AUDIO_CLASSES, MODEL_NAMES
from penstock.families.vision.served import VISION_CLASSES
from penstock.formats.fields import Fields
from penstock.model.config import TransformersConfig
from penstock.model.layer_spec import NormSpec
from penstock.prepare.checkpoint import check_config
from penstock.prepare.hub_config import POOLING_CLASSES
from penstock.prepare.hub_encoder_config import is_encoder
from penstock.prepare.hub_pooling import MAX_LABELS

DECODERS = ("ForCausalLM", "LMHeadModel")
"""Ends of the names of transformers' classes of decoders."""

# fmt: off
OWN_ATTENTION = frozenset(
    (
        "Bamba", "Bart", "BigBird", "BigBirdPegasus", "BioGpt", "Blenderbot",
        "BlenderbotSmall", "Bloom", "Blt", "CodeGen", "CpmAnt", "Falcon", "FalconH1",
        "FalconMamba", "GPTJ", "GPTNeo", "GPTNeoXJapanese", "Git", "Inkling", "Jamba",
        "KimiLinear", "MBart", "Mamba", "Mamba2", "Marian", "MegatronBert", "Mpt",
        "Musicgen", "MusicgenMelody", "Mvp", "NemotronH", "OlmoHybrid", "OpenAIGPT",
        "PLBart", "Pegasus", "ProphetNet", "Qwen3Next", "Qwen3_5", "Qwen3_5Moe",
        "Qwen4Exp", "RecurrentGemma", "RemBert", "RoFormer", "Rwkv", "TrOCR", "Whisper",
        "XGLM", "XLNet", "Zamba", "Zamba2", "Zaya", "xLSTM",
    )
)
# fmt: on
"""Decoders whose attention, in transformers 5.17, doesn't go through its interface, or that have
recurrent layers. So they are refused before anything is loaded; others are when they are loaded."""

_PARTS = ("vision_config", "audio_config", "encoder", "speech_config")
"""Sections about what isn't a decoder of text."""
_RECURRENT = ("linear_attention", "mamba", "conv", "recurrent")
_OF_ITS_OWN = ("chunked_attention", "compressed", "indexer")

MOST_OF_A_SIZE = 1 << 40

_INSTRUCTIONS = frozenset(
    {
        "architectures",
        "auto_map",
        "compression_config",
        "custom_generate",
        "distributed_config",
        "dtype",
        "fusion_config",
        "gradient_checkpointing",
        "kernel_config",
        "quantization_config",
        "torch_dtype",
        "torchscript",
        "transformers_weights",
        "tp_plan",
        "use_kernels",
    }
)
"""Keys that tell transformers what to load or how to run, which is ours to say."""


def without_instructions(settings: Any) -> Any:
    """What config.json says of the model itself, in all of its sections."""
    if isinstance(settings, Mapping):
        return {
            key: without_instructions(value)
            for key, value in settings.items()
            if key not in _INSTRUCTIONS and not key.startswith("_")
        }
    return settings


def is_for_transformers(fields: Fields, model_impl: ModelImpl) -> bool:
    """Whether transformers' code is to compute the model of this config.json."""
    if model_impl == "auto":
        return _falls_to_transformers(fields)
    return model_impl == "transformers"


def _falls_to_transformers(fields: Fields) -> bool:
    """Whether config.json names a decoder that no family describes, and that transformers' code
    may compute."""
    named = fields.values.get("architectures")
    names = [str(name) for name in named] if isinstance(named, list) else []
    stem = _stem(names[0]) if names else None
    return (
        stem is not None
        and stem not in OWN_ATTENTION
        and not any(_known(name) for name in names)
        and isinstance(fields.values.get("model_type"), str)
        and not is_encoder(fields)
        and not is_eagle3(fields)
        and not is_assistant(fields)
    )


def _known(name: str) -> bool:
    if name in VISION_CLASSES or name in AUDIO_CLASSES:  # some are called like decoders
        return True
    return any(map(family_of_class, (name, f"{_stem(name)}ForCausalLM")))


def _stem(name: str) -> str | None:
    """What a class's name begins with; None for one that is no decoder's."""
    for end in (*DECODERS, *POOLING_CLASSES):
        if name.endswith(end):
            return name.removesuffix(end)
    return None


def read_for_transformers(fields: Fields) -> TransformersConfig:
    """Raises UnsupportedModel for what is no decoder of text alone, for recurrent layers, for
    quantised weights, and for sizes that can't be a model's."""
    where = fields.where
    names = fields.listed("architectures", str)
    if not names or _stem(names[0]) is None:
        raise UnsupportedModel(
            f"{where}: the architecture {', '.join(names) or 'none'} is not served by "
            f"transformers' code; those are whose names end in {', '.join(DECODERS)}. Families "
            f"are {MODEL_NAMES}"
        )
    fields.text("model_type")
    _refuse_other_parts(fields, names[0])
    _refuse_large_counts(fields.values, where)
    heads, hidden = _size(fields, "num_attention_heads", "n_head", "n_heads"), _hidden(fields)
    config = TransformersConfig(
        architecture=names[0],
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(
            fields, "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", other=4 * hidden
        ),
        num_layers=layer_count(fields, _key(fields, "num_hidden_layers", "n_layer", "n_layers")),
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, heads),
        head_dim=_head_dim(fields, heads, hidden),
        max_position=_size(
            fields, "max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"
        ),
        norm=NormSpec(),
        ropes=(),
        settings=json.dumps(fields.values, sort_keys=True),
    )
    check_config(config, where)
    return config


def _refuse_other_parts(fields: Fields, name: str) -> None:
    where = fields.where
    if fields.values.get("is_encoder_decoder"):
        raise UnsupportedModel(f"{where}: {name} is an encoder with a decoder; decoders are served")
    for part in _PARTS:
        if part in fields:
            raise UnsupportedModel(
                f"{where}: {name} has a section {part}; decoders of text alone are served by "
                "transformers' code"
            )
    if "index_topk" in fields:
        raise UnsupportedModel(
            f"{where}: {name} attends to the tokens that an indexer chooses (index_topk); neither "
            "a family nor transformers' code over a paged cache has that"
        )
    method = fields.section("quantization_config").values.get("quant_method", "an unnamed method")
    if "quantization_config" in fields or "compression_config" in fields:
        raise UnsupportedModel(
            f"{where}: {name} quantised by {str(method)[:40]} is not served by transformers' code; "
            "its unquantised weights are, and quantised ones of the families "
            f"({MODEL_NAMES})"
        )
    kinds = fields.values.get("layer_types") or ()
    for kind in kinds if isinstance(kinds, list) else ():
        if any(word in str(kind) for word in (*_RECURRENT, *_OF_ITS_OWN)):
            raise UnsupportedModel(
                f"{where}: layer_types has {str(kind)[:40]!r}; full_attention and "
                "sliding_attention are served by transformers' code"
            )


def _refuse_large_counts(values: Any, where: str) -> None:
    """Refuses numbers by which transformers' classes would make modules or lists, in any
    section."""
    if isinstance(values, list):
        for each in values:
            _refuse_large_counts(each, where)
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        limit = _limit(key)
        if isinstance(value, int) and limit < abs(value):
            raise UnsupportedModel(f"{where}: {key[:80]} is {value}; at most {limit} are allowed")
        _refuse_large_counts(value, where)


def _limit(key: str) -> int:
    """The largest number of what a key counts; what is a size is compared with the weights."""
    if any(word in key for word in ("size", "dim", "intermediate", "capacity")):
        return MOST_OF_A_SIZE
    if "expert" in key:
        return MAX_EXPERTS
    if "label" in key:
        return MAX_LABELS
    return MAX_LAYERS if "layer" in key else MOST_OF_A_SIZE


def _key(fields: Fields, *keys: str) -> str:
    """The first of the keys that is there, or the first of all."""
    return next((key for key in keys if key in fields), keys[0])


def _size(fields: Fields, *keys: str, other: int | None = None) -> int:
    return fields.integer(_key(fields, *keys), other)


def _hidden(fields: Fields) -> int:
    return _size(fields, "hidden_size", "n_embd", "d_model")


def _kv_heads(fields: Fields, heads: int) -> int:
    if fields.flag("multi_query", False):
        return 1
    return _size(fields, "num_key_value_heads", "num_kv_heads", "n_head_kv", other=heads)


def _head_dim(fields: Fields, heads: int, hidden: int) -> int:
    """The larger of a key's and a value's."""
    rotating = fields.optional_integer("qk_rope_head_dim")
    if rotating is not None:
        key = rotating + fields.integer("qk_nope_head_dim")
        return max(key, fields.integer("v_head_dim", key))
    stated = fields.optional_integer("head_dim")
    if stated is not None:
        return stated
    if heads < 1 or hidden % heads:
        raise UnsupportedModel(
            f"{fields.where}: {heads} attention heads don't divide the hidden size {hidden}"
        )
    return hidden // heads
