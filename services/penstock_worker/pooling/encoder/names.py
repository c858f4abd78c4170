"""One naming of encoders' tensors: that of BERT, without a leading `bert.`; names in GGUF files;
and those of models whose texts and pictures share a space."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from penstock.errors import UnsupportedModel
from penstock.families import ENCODERS
from penstock.families.family import ClassifierHead
from penstock.formats.gguf import GGUFFile
from penstock.model.config import EncoderConfig
from penstock_worker.weights.stored import StoredTensor

_PREFIXES = (
    *ENCODERS,
    *(each for family in ENCODERS.values() for each in family.prefixes),
    "model",
)
_PREFIX = re.compile(rf"^({'|'.join(_PREFIXES)})\.")
_UNUSED = re.compile(
    r"(^|\.)(position_ids|token_type_ids|rotary_emb\.(inv_freq|cos_cached|sin_cached))$"
    r"|^(cls|lm_head|vocab_transform|vocab_layer_norm|vocab_projector|predictions"
    r"|(generator|discriminator|lm|mask)_predictions|generator_lm_head|sop_classifier)\."
)
"""Buffers, and the heads that models are trained with."""

_OLD_NORMS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))


def bare_name(name: str) -> str:
    """Returns a tensor's name without what the checkpoint puts in front of an encoder's tensors,
    and without old names of norms."""
    name = _PREFIX.sub("", name)
    for theirs, ours in _OLD_NORMS:
        name = name.replace(theirs, ours)
    return name


def encoder_name(name: str, family: str) -> str | None:
    """Returns our name for a tensor of a Hugging Face checkpoint; None for one that isn't
    needed."""
    name = _PREFIX.sub("", name)
    if _UNUSED.search(name):
        return None
    for theirs, ours in (*ENCODERS[family].tensors, *_OLD_NORMS):
        name = name.replace(theirs, ours)
    return name


HEADS = ("query", "key", "value")
_FUSED = ".attention.self.all."


def heads_apart(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Returns tensors by our names, queries, keys and values each by itself, which lie one under
    the other in some families' files. Raises UnsupportedModel for a tensor that has no three such
    parts."""
    found: dict[str, StoredTensor] = {}
    for name, stored in tensors.items():
        if _FUSED not in name:
            found[name] = stored
            continue
        rows = stored.shape[0] if stored.shape else 0
        if rows % len(HEADS):
            raise UnsupportedModel(
                f"tensor {stored.name} has {rows} rows, which queries, keys and values can't share"
            )
        size = rows // len(HEADS)
        for place, part in enumerate(HEADS):
            own = stored.row_range(range(place * size, (place + 1) * size))
            found[name.replace(_FUSED, f".attention.self.{part}.")] = own
    return found


_TEXTS = re.compile(r"^text_model\.(?:encoder\.)?(?!embeddings\.position_ids$)")
_VECTOR = re.compile(r"^(?:text_projection|text_model\.head)\.")


def space_name(name: str) -> str | None:
    """Returns our name for a tensor of the texts of a model whose pictures have vectors, too; None
    for its pictures, and for what compares both."""
    if _VECTOR.match(name):
        return _VECTOR.sub("vector.", name)
    return _TEXTS.sub("", name) if _TEXTS.match(name) else None


_TOP = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
_LAYER = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_qkv": "attention.self.all",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_gate": "intermediate.gate",
    "ffn_gate_inp": "experts.router",
    "ffn_up_exps": "experts.up",
    "ffn_down_exps": "experts.down",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")


def encoder_gguf_name(name: str) -> str:
    """Returns our name for a GGUF tensor. An unknown name stays as it is."""
    found = _NAME.fullmatch(name)
    if found is None:
        return name
    layer, stem, kind = found.groups()
    known = (_TOP if layer is None else _LAYER).get(stem)
    if known is None:
        return name
    return f"{known}.{kind}" if layer is None else f"encoder.layer.{layer}.{known}.{kind}"


def encoder_gguf_tensors(files: tuple[str, ...], config: EncoderConfig) -> dict[str, StoredTensor]:
    """Returns the files' tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    head = ENCODERS[config.family].head
    found = {
        with_head(encoder_gguf_name(tensor.name), head): StoredTensor(
            tensor.name, tensor.shape, tensor.type, tensor.data
        )
        for path in files
        for tensor in GGUFFile(path, vocabulary=False).tensors.values()
    }
    if config.experts is not None:
        found = _experts_apart(found)
    return heads_apart(_gates_apart(found) if config.gated else found)


_STACK = re.compile(r"(.+\.experts)\.(up|down)\.weight")


def _experts_apart(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Returns tensors by our names, with each expert's matrix by itself."""
    found: dict[str, StoredTensor] = {}
    for name, stored in tensors.items():
        stack = _STACK.fullmatch(name)
        if stack is None or len(stored.shape) != 3:
            found[name] = stored
            continue
        for number in range(stored.shape[0]):
            own = stored.row_range(range(number, number + 1))
            found[f"{stack[1]}.{number}.{stack[2]}.weight"] = replace(own, shape=own.shape[1:])
    return found


def _gates_apart(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Returns tensors by our names, with each gate and what it weighs by itself: the gate's rows
    are the first ones of a tensor of both."""
    found: dict[str, StoredTensor] = {}
    for name, stored in tensors.items():
        at, inner, kind = name.rpartition(".intermediate.dense.")
        if not inner:
            found[name] = stored
        elif f"{at}.intermediate.gate.{kind}" in tensors or len(stored.shape) != 2:
            found[f"{at}.intermediate.up.{kind}"] = stored
        else:
            half = stored.shape[0] // 2
            found[f"{at}.intermediate.gate.{kind}"] = stored.row_range(range(half))
            found[f"{at}.intermediate.up.{kind}"] = stored.row_range(range(half, 2 * half))
    return found


def with_head(name: str, head: ClassifierHead | None) -> str:
    """Returns our name for a tensor of the head in a GGUF file; other names stay as they are."""
    stem, _, kind = name.rpartition(".")
    if head is None or stem not in ("cls", "cls.output", "cls.norm"):
        return name
    own = {"cls": head.inner, "cls.output": head.outer, "cls.norm": head.norm}[stem]
    return f"{own}.{kind}" if own else name
