"""ModelConfig from a hub folder's config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.bounds import check_drafts
from penstock.families.family import Family, TowerFamily
from penstock.families.finding import family_of_class
from penstock.families.hub_defaults import ABSENT
from penstock.families.hub_reading import pass_over
from penstock.families.served import AUDIO_CLASSES, HUB_CLASSES, MODEL_NAMES
from penstock.families.vision.reading import HARMLESS as HARMLESS_IN_TOWERS
from penstock.families.vision.served import VISION_CLASSES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.prepare.checkpoint import (
    check_config,
    check_towers,
    odd_values_refused,
    stretched,
)
from penstock.process import logs

log = logs.get(__name__)

POOLING_CLASSES = ("Model", "ForSequenceClassification")
"""Ends of the names of the same families' classes without an output head."""

TEXT_HALF = "text_config"
"""The section about the decoder of a model with vision or audio towers."""

HARMLESS = frozenset(
    {
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "auto_map",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "classifier_from_token",  # read with the pooling, as the next
        "is_original_qwen3_reranker",
        "decoder_start_token_id",
        "do_sample",
        "dtype",
        "early_stopping",
        "embd_pdrop",
        "embedding_dropout",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "hidden_dropout",
        "id2label",
        "initializer_factor",
        "initializer_range",
        "keys_to_ignore_at_inference",
        "label2id",
        "length_penalty",
        "matryoshka_dimensions",  # this and the next two are read with the pooling
        "sbert_ce_default_activation_function",
        "sentence_transformers",
        "max_length",
        "min_length",
        "model_type",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_labels",
        "num_return_sequences",
        "original_max_position_embeddings",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "output_scores",
        "pad_token_id",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "pruned_heads",
        "quantization_config",
        "compression_config",
        "remove_invalid_values",
        "repetition_penalty",
        "resid_pdrop",
        "residual_dropout",
        "return_dict",
        "return_dict_in_generate",
        "router_aux_loss_coef",
        "sep_token_id",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "typical_p",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
        "use_return_dict",
    }
)
"""Keys of config.json that don't change what a model computes: names, training, and defaults of
generation, which generation_config.json has."""


def read_config(fields: Fields, *, language_model_only: bool = False) -> ModelConfig:
    """language_model_only: towers are left out.

    Raises UnsupportedModel for another architecture, and for a variant of one of ours that can't be
    computed."""
    towers = towers_of(fields)
    if towers:
        return _with_towers(fields, towers, language_model_only=language_model_only)
    family = _family(fields)
    if TEXT_HALF in fields:
        log.info("the model is served for text only", config=fields.where)
        fields = _text_half(fields)
    return _decoder(fields, family)


def _decoder(fields: Fields, family: Family) -> ModelConfig:
    check_drafts(fields)
    with odd_values_refused(fields.where):
        config = family.read_hub(fields.with_absent(ABSENT.get(family.name, {})))
    pass_over(fields, HARMLESS, family.unserved)
    check_config(config, fields.where)
    return stretched(config)


OF_TOKENS = ("_token_id", "_token_index")
"""Ends of keys outside the sections about tower and decoder that name a token: if it is a media
token, the reader of the media's preparation looks it up."""


def towers_of(fields: Fields) -> list[TowerFamily]:
    """Returns the families of the model's towers, vision or audio; empty for a text model."""
    known: tuple[Mapping[str, TowerFamily], ...] = (VISION_CLASSES, AUDIO_CLASSES)
    of_names = ([each[name] for each in known if name in each] for name in classes_of(fields))
    return next(filter(None, of_names), [])


def _with_towers(
    fields: Fields, towers: Sequence[TowerFamily], *, language_model_only: bool
) -> ModelConfig:
    """All of `towers` stand before the same decoders."""
    half, section = towers[0].text_half(fields)
    text = _decoder(_tied_as(fields, section), half.family)
    if language_model_only:
        log.info("the model is served for text only", config=fields.where)
        return text
    parts = {}
    for towered in towers:
        tower = fields.section(towered.SECTION)
        with odd_values_refused(fields.where):
            parts[towered.PART] = towered.read(fields, tower, text)
        pass_over(tower, HARMLESS | HARMLESS_IN_TOWERS)
        fields.ignore(towered.SECTION, TEXT_HALF, "tie_word_embeddings", *towered.harmless)
        fields.ignore(*(key for key in fields.values if key.endswith(OF_TOKENS)))
    if not any(parts.values()):
        log.info("the model is served for text only", config=fields.where)
    if TEXT_HALF in fields:  # else all other keys are the decoder's
        pass_over(fields, HARMLESS)
    config = msgspec.structs.replace(text, **parts)
    check_towers(config, fields.where)
    return config


def _text_half(fields: Fields) -> Fields:
    """The decoder's section."""
    return _tied_as(fields, fields.section(TEXT_HALF))


def _tied_as(fields: Fields, section: Fields) -> Fields:
    """Whether embedding and head are tied is said outside of the decoder's section."""
    tied = "tie_word_embeddings"
    if section is fields or tied not in fields:
        return section
    return section.replaced({tied: fields.flag(tied)})


CLASS_OF_TYPE = {"multi_modality": "MultiModalityCausalLM"}
"""The class by model_type, of makers whose files may name none."""


def classes_of(fields: Fields) -> list[str]:
    """The names of the classes that the file is for, usually one; empty: none is named."""
    if "architectures" in fields:
        return fields.listed("architectures", str)
    kind = CLASS_OF_TYPE.get(str(fields.values.get("model_type")))
    return [] if kind is None else [kind]


def _family(fields: Fields) -> Family:
    names = classes_of(fields)
    for name in names:
        stems = [name.removesuffix(end) for end in POOLING_CLASSES if name.endswith(end)]
        for known in (name, *(f"{stem}ForCausalLM" for stem in stems)):
            family = family_of_class(known)
            if family is not None:
                return family
    what = f"the architecture {', '.join(names)} is not served"
    if not names:
        kind = fields.text("model_type", "missing, too")
        what = (
            f"architectures is missing, which names the model's class (model_type is {kind[:80]})"
        )
    raise UnsupportedModel(f"{fields.where}: {what}; {', '.join(HUB_CLASSES)} are ({MODEL_NAMES})")
