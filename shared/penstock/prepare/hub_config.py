"""ModelConfig from a hub folder's config.json."""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import HUB_CLASSES, MODEL_NAMES, Family
from penstock.families.audio import AUDIO_CLASSES
from penstock.families.family import TowerFamily
from penstock.families.finding import family_of_class
from penstock.families.hub_reading import refuse_unknown
from penstock.families.vision import HARMLESS as HARMLESS_IN_TOWERS
from penstock.families.vision import VISION_CLASSES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.prepare.checkpoint import check_config
from penstock.prepare.odd_values import odd_values_refused
from penstock.process import logs

log = logs.get(__name__)

POOLING_CLASSES = ("Model", "ForSequenceClassification")
"""Ends of the names of the same families' classes without an output head."""

TEXT_HALF = "text_config"
"""The section about the decoder of a model that also sees or hears."""

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
    """language_model_only: what a model sees or hears with is left out.

    Raises UnsupportedModel for another architecture, for a variant of one of ours that can't be
    computed, and for a setting that nobody here knows and that could change the output."""
    towered = _with_a_tower(fields)
    if towered is not None:
        return _with_tower(fields, towered, language_model_only=language_model_only)
    family = _family(fields)
    if TEXT_HALF in fields:
        log.info("the model is served for text only", config=fields.where)
        fields = _text_half(fields)
    return _decoder(fields, family)


def _decoder(fields: Fields, family: Family) -> ModelConfig:
    with odd_values_refused(fields.where):
        config = family.read_hub(fields)
    refuse_unknown(fields, HARMLESS)
    return check_config(config, fields.where)


def _with_a_tower(fields: Fields) -> TowerFamily | None:
    """The family of a model that sees or hears; None for others."""
    known: dict[str, TowerFamily] = {**VISION_CLASSES, **AUDIO_CLASSES}
    names = fields.listed("architectures", str)
    return next((known[name] for name in names if name in known), None)


def _with_tower(fields: Fields, towered: TowerFamily, *, language_model_only: bool) -> ModelConfig:
    half, section = towered.text_half(fields)
    text = _decoder(_tied_as(fields, section), half.family)
    if language_model_only:
        log.info("the model is served for text only", config=fields.where)
        return text
    tower = fields.section(towered.SECTION)
    with odd_values_refused(fields.where):
        part = towered.read(fields, tower, text)
    refuse_unknown(tower, HARMLESS | HARMLESS_IN_TOWERS)
    fields.ignore(towered.SECTION, TEXT_HALF, "tie_word_embeddings", *towered.harmless)
    if TEXT_HALF in fields:  # else all other keys are the decoder's
        refuse_unknown(fields, HARMLESS)
    return msgspec.structs.replace(text, **{towered.PART: part})


def _text_half(fields: Fields) -> Fields:
    """The decoder's section."""
    return _tied_as(fields, fields.section(TEXT_HALF))


def _tied_as(fields: Fields, section: Fields) -> Fields:
    """Whether embedding and head are tied is said outside of the decoder's section."""
    tied = "tie_word_embeddings"
    if section is fields or tied not in fields:
        return section
    return section.replaced({tied: fields.flag(tied)})


def _family(fields: Fields) -> Family:
    names = fields.listed("architectures", str)
    for name in names:
        stems = [name.removesuffix(end) for end in POOLING_CLASSES if name.endswith(end)]
        for known in (name, *(f"{stem}ForCausalLM" for stem in stems)):
            family = family_of_class(known)
            if family is not None:
                return family
    raise UnsupportedModel(
        f"{fields.where}: the architecture {', '.join(names) or 'none'} is not served; "
        f"{', '.join(HUB_CLASSES)} are ({MODEL_NAMES})"
    )
