"""Models for late interaction (ColBERT): what their files say of queries and documents.

Source of the keys: config_sentence_transformers.json as pylate writes it, and artifact.metadata of
Stanford's ColBERT. Model: Khattab and Zaharia, "ColBERT", 2020.
"""

from __future__ import annotations

import string
from pathlib import Path

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.safetensors_file import SafetensorsFile
from penstock.formats.weight_files import find_safetensors
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.pooling_config import DenseLayer, LateInteraction, PoolingConfig
from penstock.prepare.hub_pooling import MAX_DENSE, dense_of
from penstock.prepare.hub_tokenizer import HubTokenizer
from penstock.prepare.pooling_files import (
    LATE_SETTINGS,
    MODULES,
    STANFORD_SETTINGS,
    read_modules,
    read_settings,
)
from penstock.process import logs
from penstock.text.tokenizer import load_backend

log = logs.get(__name__)

STANFORD_CLASS = "HF_ColBERT"
STANFORD_TENSOR = "linear"
STANFORD_KEYS = {
    "query_token_id": "query_prefix",
    "doc_token_id": "document_prefix",
    "query_maxlen": "query_length",
    "doc_maxlen": "document_length",
    "attend_to_mask_tokens": "attend_to_expansion_tokens",
}
"""Stanford's names -> pylate's."""
KEYS = (
    "query_prefix",
    "document_prefix",
    "query_length",
    "document_length",
    "attend_to_expansion_tokens",
    "skiplist_words",
    "do_query_expansion",
)
PREFIXES = {"query_prefix": "[Q] ", "document_prefix": "[D] "}
STANFORD_PREFIXES = {"query_prefix": "[unused0]", "document_prefix": "[unused1]"}
QUERY_LENGTH, DOCUMENT_LENGTH = 32, 180
"""Defaults, where the files say nothing."""


def read_late(
    path: Path, stated: Fields, config: ModelConfig | EncoderConfig, tokenizer: HubTokenizer
) -> PoolingConfig | None:
    """None for another model. Raises UnsupportedModel for what can't be computed."""
    classes = stated.values.get("architectures")
    if isinstance(classes, list) and STANFORD_CLASS in classes:
        settings, dense = _of_stanford(path, config)
    else:
        settings = read_settings(path / LATE_SETTINGS)
        if not _is_pylates(path, settings):
            return None
        settings = settings.with_absent(PREFIXES)
        dense = dense_of(path, read_modules(path), config.hidden_size)
    if not isinstance(config, EncoderConfig):
        raise UnsupportedModel(f"{path}: late interaction is served with encoders, not decoders")
    if not dense:
        raise UnsupportedModel(f"{path / MODULES} names no Dense module, which makes the vectors")
    late, longest = _late(settings, tokenizer, dense)
    _check_lengths(settings, late, config)
    return PoolingConfig(
        mode="cls",
        normalize=True,
        size=late.size,
        max_input=max(longest, late.query_length),
        late=late,
    )


def _is_pylates(path: Path, settings: Fields) -> bool:
    named = settings.values.get("similarity_fn_name") == "MaxSim"
    if named or any(key in settings for key in KEYS):
        return True
    modules = read_modules(path) if (path / MODULES).is_file() else []
    return any(str(module.get("type", "")).startswith("pylate.") for module in modules)


def _of_stanford(
    path: Path, config: ModelConfig | EncoderConfig
) -> tuple[Fields, tuple[DenseLayer, ...]]:
    found = read_settings(path / STANFORD_SETTINGS)
    if found.text("similarity", "cosine") != "cosine":
        raise found.wrong("similarity", "cosine")
    renamed = {
        ours: found.values[theirs]
        for theirs, ours in STANFORD_KEYS.items()
        if found.values.get(theirs) is not None
    }
    if not found.flag("mask_punctuation", True):
        renamed["skiplist_words"] = []
    settings = Fields({**STANFORD_PREFIXES, **renamed}, found.where)
    for file in find_safetensors(path):
        tensor = SafetensorsFile(file).tensors.get(f"{STANFORD_TENSOR}.weight")
        if tensor is None:
            continue
        shape = tensor.shape
        if len(shape) != 2 or shape[1] != config.hidden_size or not 1 <= shape[0] <= MAX_DENSE:
            raise UnsupportedModel(
                f"{file}: {STANFORD_TENSOR}.weight of shape {shape} makes no vectors of "
                f"{config.hidden_size} numbers"
            )
        layer = DenseLayer(
            file=str(file),
            name=STANFORD_TENSOR,
            inputs=shape[1],
            outputs=shape[0],
            bias=False,
            alone=False,
        )
        return settings, (layer,)
    raise UnsupportedModel(f"{path} has no tensor {STANFORD_TENSOR}.weight, which makes vectors")


def _late(
    settings: Fields, tokenizer: HubTokenizer, dense: tuple[DenseLayer, ...]
) -> tuple[LateInteraction, int]:
    """Returns also how many tokens a document may have."""
    backend = load_backend(tokenizer.json)

    def prefix(key: str) -> int | None:
        text = settings.text(key)
        if not text:
            return None
        token: int | None = backend.token_to_id(text)
        if token is None:
            raise UnsupportedModel(f"{settings.where}: {key}: the tokenizer has no token {text!r}")
        return token

    words = (
        settings.listed("skiplist_words", str)
        if "skiplist_words" in settings
        else list(string.punctuation)
    )
    skipped = {backend.token_to_id(word) for word in words} - {None}
    length = settings.integer("query_length", QUERY_LENGTH)
    filling = tokenizer.mask_id if tokenizer.mask_id is not None else tokenizer.eos_id
    if not settings.flag("do_query_expansion", True):
        length = 0
    elif filling is None:
        raise UnsupportedModel(
            f"{settings.where}: queries are filled up with the mask token, and the tokenizer names "
            "neither that nor an end token"
        )
    late = LateInteraction(
        dense=dense,
        size=dense[-1].outputs,
        query_prefix=prefix("query_prefix"),
        document_prefix=prefix("document_prefix"),
        query_length=length,
        filling=filling or 0,
        sees_filling=settings.flag("attend_to_expansion_tokens", False),
        skipped=tuple(sorted(token for token in skipped if token is not None)),
    )
    return late, settings.integer("document_length", DOCUMENT_LENGTH)


def _check_lengths(settings: Fields, late: LateInteraction, config: EncoderConfig) -> None:
    longest = config.max_position
    document = settings.integer("document_length", DOCUMENT_LENGTH)
    for key, value in (("query_length", late.query_length), ("document_length", document)):
        if value > longest or value < (key == "document_length"):
            raise UnsupportedModel(
                f"{settings.where}: {key} is {value}; the model takes at most {longest} tokens"
            )
    rules = [layer.attention for layer in config.layers.layers]
    windows = [rule.window for rule in rules if rule.window]
    if late.hides and late.query_length > min(windows, default=longest):
        raise UnsupportedModel(
            f"{settings.where}: query_length is {late.query_length}, of which tokens see "
            f"{min(windows)}; what fills a longer query up would see none"
        )
