"""The tensors of an encoder's GGUF file, in our naming, which is that of BERT."""

from __future__ import annotations

import re

from penstock.formats.gguf import GGUFFile
from penstock_worker.weights.stored import StoredTensor

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
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
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


def encoder_gguf_tensors(files: tuple[str, ...]) -> dict[str, StoredTensor]:
    """Returns the files' tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    return {
        encoder_gguf_name(tensor.name): StoredTensor(
            tensor.name, tensor.shape, tensor.type, tensor.data
        )
        for path in files
        for tensor in GGUFFile(path, vocabulary=False).tensors.values()
    }
