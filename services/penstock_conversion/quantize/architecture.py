"""What a hub folder's config says, as the keys of a GGUF file: what the families' `read_gguf`
reads.

What was written is read again and compared with the folder's config, so that a model of which a
file can't say everything is refused and never written as another one.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from penstock.errors import UnsupportedModel
from penstock.families.family import Family
from penstock.families.gguf_reading import RMS_EPS, GGUFMetadata
from penstock.families.served import FAMILIES
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFTensor
from penstock.formats.gguf_writing import ValueType
from penstock.model.config import ModelConfig
from penstock.model.rope_spec import RopeScaling, RopeSpec

Keys = dict[str, tuple[Any, ValueType]]
"""Values with their types, by keys without the architecture's name in front."""


def _nothing(config: ModelConfig) -> Keys:
    return {}


def _vocab(config: ModelConfig) -> Keys:
    return {"vocab_size": (config.vocab_size, "uint32")}


def _caps(config: ModelConfig) -> Keys:
    found: Keys = {}
    cap = config.layer(0).attention.soft_cap
    if cap is not None:
        found["attn_logit_softcapping"] = (cap, "float32")
    if config.logits_soft_cap is not None:
        found["final_logit_softcapping"] = (config.logits_soft_cap, "float32")
    return found


def _windows(config: ModelConfig) -> Keys:
    windows = {config.layer(number).attention.window for number in range(config.num_layers)}
    found = [window for window in windows if window is not None]
    return {"attention.sliding_window": (found[0], "uint32")} if found else {}


def _gemma2(config: ModelConfig) -> Keys:
    return _caps(config) | _windows(config)


def _gemma3(config: ModelConfig) -> Keys:
    local: Keys = {"rope.freq_base_swa": (config.ropes[-1].theta, "float32")}
    return _caps(config) | _windows(config) | local


def _granite(config: ModelConfig) -> Keys:
    layer = config.layer(0)
    return {
        "attention.scale": (layer.attention.scale, "float32"),
        "embedding_scale": (config.embedding_multiplier, "float32"),
        "residual_scale": (layer.residual_multiplier, "float32"),
        "logit_scale": (1.0 / config.logits_multiplier, "float32"),
    }


_OF_FAMILY: Mapping[str, tuple[str, Callable[[ModelConfig], Keys]]] = {
    "llama": ("llama", _vocab),
    "mistral": ("llama", _vocab),
    "qwen2": ("qwen2", _nothing),
    "qwen3": ("qwen3", _nothing),
    "smollm3": ("smollm3", _vocab),
    "gemma": ("gemma", _nothing),
    "gemma2": ("gemma2", _gemma2),
    "gemma3": ("gemma3", _gemma3),
    "granite": ("granite", _granite),
    "olmo2": ("olmo2", _nothing),
}
"""Architectures by a folder's family: the file's family, and its keys in addition to those that all
have."""


def file_family(config: ModelConfig) -> Family:
    """The family whose GGUF files a folder's model is written as. Raises UnsupportedModel for one
    that isn't converted."""
    found = _OF_FAMILY.get(config.architecture)
    if found is None:
        known = ", ".join(FAMILIES[name].known_as for name in _OF_FAMILY)
        raise UnsupportedModel(
            f"folders of the family {config.architecture} can't be converted to GGUF; allowed are"
            f" {known}, and a GGUF file of any family that is served"
        )
    return FAMILIES[found[0]]


def architecture_keys(config: ModelConfig) -> Keys:
    """The keys that say what `config` says."""
    rope = config.ropes[0]
    keys: Keys = {
        "block_count": (config.num_layers, "uint32"),
        "context_length": (config.max_position, "uint32"),
        "embedding_length": (config.hidden_size, "uint32"),
        "feed_forward_length": (config.intermediate_size, "uint32"),
        "attention.head_count": (config.num_heads, "uint32"),
        "attention.head_count_kv": (config.num_kv_heads, "uint32"),
        "attention.key_length": (config.head_dim, "uint32"),
        "attention.value_length": (config.head_dim, "uint32"),
        RMS_EPS: (config.norm.eps, "float32"),
        "rope.dimension_count": (rope.dims, "uint32"),
        "rope.freq_base": (rope.theta, "float32"),
    }
    return keys | _scaling(rope.scaling) | _OF_FAMILY[config.architecture][1](config)


def _scaling(scaling: RopeScaling | None) -> Keys:
    if scaling is None or scaling.kind == "llama3":
        return {}  # The latter is a tensor.
    found: Keys = {
        "rope.scaling.type": (scaling.kind, "string"),
        "rope.scaling.factor": (scaling.factor, "float32"),
    }
    if scaling.kind == "yarn":
        found["rope.scaling.original_context_length"] = scaling.original_max_position, "uint32"
        found["rope.scaling.yarn_beta_fast"] = (scaling.beta_fast, "float32")
        found["rope.scaling.yarn_beta_slow"] = (scaling.beta_slow, "float32")
    return found


def check_same(
    config: ModelConfig, keys: Keys, shapes: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Reads the keys as those of a file with tensors of these shapes. Raises UnsupportedModel,
    which says what differs, unless that is the same model."""
    family = file_family(config)
    read, gguf = family.read_gguf, family.gguf
    if read is None or gguf is None:
        raise UnsupportedModel(f"{where}: {family.known_as} has no GGUF files")
    empty = np.zeros(0, np.uint8)
    tensors = {
        name: GGUFTensor(name=name, shape=shape, type="F32", data=empty)
        for name, shape in shapes.items()
    }
    values = {key: value for key, (value, _) in keys.items()}
    found = read(GGUFMetadata(Fields(values, where), tensors, config.vocab_size, gguf))
    ours, theirs = _comparable(config), _comparable(found)
    differing = [name for name in ours if not _alike(ours[name], theirs[name])]
    if differing:
        raise UnsupportedModel(
            f"{where}: a GGUF file of {family.known_as} can't say what this model has as"
            f" {', '.join(differing)}"
        )


def _comparable(config: ModelConfig) -> dict[str, Any]:
    """What decides what a model computes, apart from how its files have it."""
    norm = msgspec.structs.replace(config.norm, plus_one=False)
    ropes = tuple(map(_plain_rope, config.ropes))
    layers = tuple(config.layer(number) for number in range(config.num_layers))
    same = msgspec.structs.replace(config, architecture="", norm=norm, ropes=ropes, layers=layers)
    found = msgspec.to_builtins(same)
    return found if isinstance(found, dict) else {}


def _plain_rope(rope: RopeSpec) -> RopeSpec:
    """Without what makes no difference, and Llama 3's scaling as files have it."""
    if not rope.query_growth:
        rope = msgspec.structs.replace(rope, query_growth_length=0)
    if rope.scaling is None or rope.scaling.kind != "llama3":
        return rope
    return msgspec.structs.replace(rope, scaling=RopeScaling(kind="precomputed"))


def _alike(one: Any, other: Any) -> bool:
    """Equal but for what a float32 rounds."""
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)
