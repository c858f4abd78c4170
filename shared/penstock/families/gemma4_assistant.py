"""Gemma 4's assistant: a few layers that draft for a Gemma 4, whose keys and values they read.

Sources: transformers' Gemma4AssistantConfig and Gemma4AssistantForCausalLM, and what these are
called for Gemma 4 12B, Gemma4UnifiedAssistantConfig and so on; for GGUF files,
llama.cpp's conversion/gemma.py and models/gemma4-assistant.cpp.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.gemma4 import GEMMA4, read_gguf
from penstock.families.gemma4_unified import GEMMA4_UNIFIED
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.attention_spec import KVHeadsSpec
from penstock.model.config import HeadConfig, ModelConfig

OF_12B = "Gemma4UnifiedAssistantForCausalLM"
CLASSES = ("Gemma4AssistantForCausalLM", OF_12B)
"""What `architectures` names in an assistant's config.json."""
GGUF_ASSISTANT = "gemma4-assistant"
"""`general.architecture` of its GGUF files."""
TEXT, SHARED = "text_config", "num_kv_shared_layers"
OWN_INPUTS = ("hidden_size_per_layer_input", "vocab_size_per_layer_input")
"""Settings of inputs of each layer; the second says nothing where the first is 0."""
REFUSED = ("enable_moe_block", "use_double_wide_mlp")
"""What an assistant's layers never have."""
HIDDEN, HIDDEN_OF_12B, GROUPS, LIKELIEST = 1536, 3840, 2048, 32
"""Hidden size of the model, and of Gemma 4 12B, groups of ids and how many of them are drafted
from, where config.json doesn't say."""


def is_assistant(fields: Fields) -> bool:
    names = fields.values.get("architectures")
    return isinstance(names, list) and any(name in names for name in CLASSES)


def read_assistant(fields: Fields) -> HeadConfig:
    """Raises UnsupportedModel for a variant that isn't served."""
    text = fields.section(TEXT)
    unified = OF_12B in fields.listed("architectures", str)
    kind = "gemma4_unified_text" if unified else "gemma4_text"
    if text.text("model_type", kind) != kind:
        raise text.wrong("model_type", repr(kind))
    count = text.integer("num_hidden_layers")
    if text.integer(SHARED, 0) not in (0, count):
        raise text.wrong(SHARED, f"{count}, as many as there are layers,")
    if text.integer(OWN_INPUTS[0], 0 if unified else 256):
        raise text.wrong(OWN_INPUTS[0], "0, as an assistant's layers have no inputs of their own,")
    for key in REFUSED:
        if text.flag(key, False):
            raise text.wrong(key, "false")
    if not fields.flag("tie_word_embeddings", True):
        raise fields.wrong("tie_word_embeddings", "true")
    decoder = GEMMA4.read_hub(text.without(SHARED, *OWN_INPUTS).replaced({OWN_INPUTS[0]: 0}))
    groups = _id_groups(fields, decoder.vocab_size)
    usual = HIDDEN_OF_12B if unified else HIDDEN
    return _head(decoder, fields.integer("backbone_hidden_size", usual), groups)


def read_gguf_assistant(model: GGUFMetadata) -> HeadConfig:
    """Files have no groups of ids, which llama.cpp's converter leaves out: all ids are drafted.
    Raises UnsupportedModel."""
    keys = model.keys
    count = keys.integer("block_count")
    for key, allowed in (
        ("attention.shared_kv_layers", (0, count)),
        ("nextn_predict_layers", (count,)),
        ("embedding_length_per_layer_input", (0,)),
        ("expert_count", (0,)),
    ):
        if keys.integer(key, allowed[-1]) not in allowed:
            raise keys.wrong(key, f"{allowed[-1]}, as of an assistant of {count} layers,")
    own = GGUFMetadata(
        keys.replaced({"attention.shared_kv_layers": 0}), model.tensors, model.vocab_size
    )
    decoder = read_gguf(own)
    if not decoder.tie_word_embeddings:
        raise UnsupportedModel(f"{keys.where}: output.weight is there; an assistant has none")
    return _head(decoder, keys.integer("embedding_length_out"), (0, 0))


def _head(decoder: ModelConfig, served_hidden: int, groups: tuple[int, int]) -> HeadConfig:
    """`decoder`: its layers as those of a model. `groups`: of ids, and the likeliest of them."""
    said = {name: getattr(decoder, name) for name in ModelConfig.__struct_fields__}
    return HeadConfig(
        **said
        | {
            "layers": tuple(decoder.layer(number) for number in range(decoder.num_layers)),
            "tie_word_embeddings": True,
            "embedding_multiplier": 1.0,
            "logits_soft_cap": None,
        },
        served_vocab=decoder.vocab_size,
        served_hidden=served_hidden,
        borrows=True,
        id_groups=groups[0],
        likeliest_groups=groups[1],
    )


def _id_groups(fields: Fields, vocab: int) -> tuple[int, int]:
    """How many groups ids are in, and of how many of them ids are drafted; 0 and 0: of all ids."""
    groups = fields.integer("num_centroids", GROUPS)
    likeliest = fields.integer("centroid_intermediate_top_k", LIKELIEST)
    if not fields.flag("use_ordered_embeddings", False):
        return 0, 0
    if groups < 1 or vocab % groups or not 1 <= likeliest <= groups:
        raise UnsupportedModel(
            f"{fields.where}: the likeliest {likeliest} of {groups} groups of {vocab} ids are"
            " drafted from (num_centroids, centroid_intermediate_top_k); groups have to be of one"
            " size, and as many as that"
        )
    return groups, likeliest


def beside(head: HeadConfig, served: ModelConfig) -> HeadConfig:
    """Returns an assistant whose layers say which of a model's layers they read: the last one of
    their kind that stores keys and values. Raises UnsupportedModel for a model that it doesn't
    fit."""
    if served.architecture not in (GEMMA4.name, GEMMA4_UNIFIED.name):
        raise UnsupportedModel(f"it drafts for Gemma 4; the model is a {served.architecture}")
    sizes = (head.served_vocab, head.served_hidden)
    wanted = (served.vocab_size, served.hidden_size)
    if sizes != wanted:
        raise UnsupportedModel(
            f"it drafts for a model of {sizes[0]} ids and hidden size {sizes[1]}; the model has"
            f" {wanted[0]} and {wanted[1]}"
        )
    layers = []
    for number in range(head.num_layers):
        layer = head.layer(number)
        source = _source(head, number, served)
        attention = msgspec.structs.replace(layer.attention, reads=source)
        layers.append(msgspec.structs.replace(layer, attention=attention))
    return msgspec.structs.replace(head, layers=tuple(layers))


def _source(head: HeadConfig, number: int, served: ModelConfig) -> int:
    own = head.layer(number).attention
    rules = [served.layer(layer).attention for layer in range(served.num_layers)]
    alike = [
        layer
        for layer, rule in enumerate(rules)
        if rule.reads is None and (rule.window is None) == (own.window is None)
    ]
    if not alike:
        raise UnsupportedModel(f"the model has no layer of the kind of its layer {number}")
    source = alike[-1]
    ours = (head.kv_heads(number), own.window)
    theirs = (served.kv_heads(source), served.layer(source).attention.window)
    if ours != theirs:
        raise UnsupportedModel(
            f"its layer {number} reads {_said(*ours)}; the model's layer {source} has"
            f" {_said(*theirs)}"
        )
    return source


def _said(heads: KVHeadsSpec, window: int | None) -> str:
    tokens = "all tokens" if window is None else f"{window} tokens"
    return f"{heads.count} KV heads of {heads.size} numbers and sees {tokens}"
