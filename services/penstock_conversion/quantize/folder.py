"""A hub folder's model as a GGUF file's: its tensors by other names, and its metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.gguf_writing import encoded_value
from penstock.formats.small_file import read_json
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import PreparedModel
from penstock.model.rope_spec import RopeSpec
from penstock.prepare.folder import CHAT_TEMPLATE, TOKENIZER
from penstock.prepare.gguf_vocabulary import KEY
from penstock.prepare.hub_tokenizer import token_named
from penstock.prepare.inputs import TOKENIZER_CONFIG
from penstock_conversion.quantize.architecture import architecture_keys, check_same, file_family
from penstock_conversion.quantize.source import SourceModel, SourceTensor
from penstock_conversion.quantize.vocabulary import vocabulary_metadata
from penstock_worker.layers.rotary_tables import frequencies_of, llama3_scaled
from penstock_worker.weights.family_names import in_file
from penstock_worker.weights.names import to_gguf
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.stored import StoredTensor

_HEAD = "lm_head.weight"
_ROPE_FACTORS = "rope_freqs.weight"
MAX_CONFIG_BYTES = 16 << 20


def folder_source(prepared: PreparedModel, folder: Path) -> SourceModel:
    """The model of a hub folder. folder: the prepared one. Raises UnsupportedModel for a family or
    a tokenizer that can't be converted."""
    config = prepared.decoder
    if not isinstance(config, ModelConfig):
        raise UnsupportedModel(f"{prepared.name} is computed by transformers' code alone")
    if prepared.pooling is not None or prepared.media is not None:
        raise UnsupportedModel(
            f"{prepared.name} takes media or gives vectors: of folders, models that generate text"
            " alone can be converted to GGUF (--language-model-only leaves out what a model sees"
            " with)"
        )
    family = file_family(config)
    keys = architecture_keys(config)
    tensors = tuple(_tensors(prepared, config))
    shapes = {each.name: each.shape for each in tensors}
    check_same(config, keys, shapes, prepared.name)
    arch = family.gguf or ""
    metadata = {
        "general.architecture": encoded_value(arch, "string"),
        "general.type": encoded_value("model", "string"),
        "general.name": encoded_value(prepared.name, "string"),
        **{f"{arch}.{key}": encoded_value(*value) for key, value in keys.items()},
        **_vocabulary(prepared, folder, config),
    }
    return SourceModel(
        metadata, tensors, config.num_layers, config.num_heads // config.num_kv_heads, experts=0
    )


def _tensors(prepared: PreparedModel, config: ModelConfig) -> Iterator[SourceTensor]:
    names = file_family(config).gguf_names
    found = open_weights(prepared.weights, config).tensors
    for name, stored in found.items():
        if stored.spare or (name == _HEAD and config.tie_word_embeddings):
            continue
        theirs = to_gguf(in_file(name, names))
        if theirs == name:
            raise UnsupportedModel(f"{prepared.name}: GGUF files have no name for {stored.name}")
        heads = _rotating_heads(name, config)
        if names.pairs_adjacent and heads:
            own = partial(_pairs_together, heads=heads, dims=config.ropes[0].dims)
            stored = replace(stored, rearrange=_after(stored.rearrange, own))
        plus_one = config.norm.plus_one and name.endswith("norm.weight")
        yield SourceTensor(theirs, stored, added=1.0 if plus_one else 0.0)
    rope = config.ropes[0]
    if rope.scaling is not None and rope.scaling.kind == "llama3":
        yield _divisors(rope)


def _rotating_heads(name: str, config: ModelConfig) -> int:
    module = name.rpartition(".")[0].rpartition(".")[2]
    return {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(module, 0)


def _after(
    first: Callable[[np.ndarray], np.ndarray] | None, last: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray], np.ndarray]:
    """What puts rows in order, after what does so already."""
    return last if first is None else lambda rows: last(first(rows))


def _pairs_together(rows: np.ndarray, heads: int, dims: int) -> np.ndarray:
    """Reorders [heads * head_dim, ...] from rotary pairs that are half of the rotating `dims` apart
    to adjacent ones."""
    by_head = rows.reshape(heads, rows.shape[0] // heads, *rows.shape[1:])
    order = np.arange(dims).reshape(2, dims // 2).T.reshape(-1)
    return np.concatenate((by_head[:, order], by_head[:, dims:]), 1).reshape(rows.shape)


def _divisors(rope: RopeSpec) -> SourceTensor:
    """Llama 3.1's scaling as files have it: what each frequency is divided by."""
    scaling = rope.scaling
    if scaling is None:
        raise ValueError("the rotation isn't scaled")
    plain = frequencies_of(rope.dims, rope.theta)
    content = (plain / llama3_scaled(plain, scaling)).view("uint8")
    return SourceTensor(
        _ROPE_FACTORS, StoredTensor(_ROPE_FACTORS, (rope.dims // 2,), "F32", content)
    )


def _vocabulary(prepared: PreparedModel, folder: Path, config: ModelConfig) -> dict[str, bytes]:
    content = (folder / TOKENIZER).read_bytes()
    found = vocabulary_metadata(content, config.vocab_size)
    for key, at in _special_ids(prepared, content).items():
        found[f"{KEY}{key}_token_id"] = encoded_value(at, "uint32")
    found[f"{KEY}add_bos_token"] = encoded_value(prepared.add_bos, "bool")
    if prepared.has_chat_template:
        template = (folder / CHAT_TEMPLATE).read_text("utf-8")
        found["tokenizer.chat_template"] = encoded_value(template, "string")
    return found


def _special_ids(prepared: PreparedModel, tokenizer: bytes) -> dict[str, int]:
    """The tokens that begin, end and fill up texts. Of several that end an answer, the first is the
    one that tokenizer_config.json names; another is the end of a turn."""
    described = msgspec.json.decode(tokenizer)
    ids = dict(described["model"]["vocab"])
    ids |= {each["content"]: each["id"] for each in described.get("added_tokens") or []}
    path = Path(prepared.weights.files[0]).parent / TOKENIZER_CONFIG
    settings = Fields(read_json(path, MAX_CONFIG_BYTES) if path.is_file() else {}, str(path))
    ends = list(prepared.generation.eos_token_ids)
    named = token_named(settings, "eos_token", ids)
    eos = named if named is not None else next(iter(ends), None)
    found = {
        "bos": prepared.generation.bos_token_id,
        "eos": eos,
        "eot": next((each for each in ends if each != eos), None),
        "unknown": token_named(settings, "unk_token", ids),
        "padding": token_named(settings, "pad_token", ids),
    }
    return {key: at for key, at in found.items() if at is not None}
