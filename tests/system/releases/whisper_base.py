"""openai/whisper-base as a folder of the hub, made of CTranslate2's file of it.

Its format, version 6: a name and a revision of what it describes, then each tensor with a name, its
shape, type and bytes, little-endian; last, names that stand for others.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
END = 50257
START = END + 1
LANGUAGES = START + 1
TRANSLATE, TRANSCRIBE, PREVIOUS, NO_TIMES = 50358, 50359, 50361, 50363
LAYERS, HEADS, WIDTH = 6, 8, 512

# The names of a part of a layer, here and there. Three matrices of self-attention, or the last two
# of attention to what is heard, lie in one.
ATTENTION = {
    "self_attention": ("self_attn", (("q_proj", "k_proj", "v_proj"), ("out_proj",))),
    "attention": ("encoder_attn", (("q_proj",), ("k_proj", "v_proj"), ("out_proj",))),
}
NORMS = {"gamma": "weight", "beta": "bias"}
PLAIN = {
    "decoder/embeddings/weight": "decoder.embed_tokens.weight",
    "decoder/position_encodings/encodings": "decoder.embed_positions.weight",
    "encoder/position_encodings/encodings": "encoder.embed_positions.weight",
}


def tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Each tensor, by its name in the file. Raises ValueError for another format."""
    data, at = path.read_bytes(), 0

    def number(form: str) -> int:
        nonlocal at
        (found,) = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize(form)
        return int(found)

    def text() -> str:
        nonlocal at
        size = number("H")
        at += size
        return data[at - size : at].rstrip(b"\0").decode()

    version, name = number("I"), text()
    if version != 6 or name != "WhisperSpec":
        raise ValueError(f"{path} is {name} in version {version}, not WhisperSpec in version 6")
    number("I")
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = TYPES[number("B")], number("I")
        yield name, np.frombuffer(data[at : at + size], kind).reshape(shape)
        at += size


def renamed(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of the hub's that one of the file's is, by their names there."""
    if name in PLAIN:
        yield PLAIN[name], array
    elif found := re.fullmatch(r"encoder/(conv[12])/(weight|bias)", name):
        yield f"encoder.{found[1]}.{found[2]}", array
    elif found := re.fullmatch(r"(encoder|decoder)/layer_norm/(gamma|beta)", name):
        yield f"{found[1]}.layer_norm.{NORMS[found[2]]}", array
    elif found := re.fullmatch(r"(encoder|decoder)/layer_(\d+)/(.*)", name):
        for inner, part in _of_layer(found[3], array):
            yield f"{found[1]}.layers.{found[2]}.{inner}", part


def _of_layer(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if found := re.fullmatch(r"ffn/layer_norm/(gamma|beta)", name):
        yield f"final_layer_norm.{NORMS[found[1]]}", array
    elif found := re.fullmatch(r"ffn/linear_([01])/(weight|bias)", name):
        yield f"fc{int(found[1]) + 1}.{found[2]}", array
    elif found := re.fullmatch(r"(self_attention|attention)/layer_norm/(gamma|beta)", name):
        yield f"{ATTENTION[found[1]][0]}_layer_norm.{NORMS[found[2]]}", array
    elif found := re.fullmatch(r"(self_attention|attention)/linear_(\d)/(weight|bias)", name):
        place, matrices = ATTENTION[found[1]]
        here = matrices[int(found[2])]
        for inner, part in zip(here, np.split(array, len(here)), strict=True):
            if inner != "k_proj" or found[3] != "bias":  # It has none: zeros stand for it.
                yield f"{place}.{inner}.{found[3]}", part
            elif part.any():
                raise ValueError("the keys have a bias")


def write_folder(model: Path, folder: Path) -> Path:
    """The folder with weights in float16, tokenizer, and the settings as its maker has them.

    model: CTranslate2's file, with its config.json and tokenizer.json beside it.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import WhisperConfig, WhisperFeatureExtractor

    given = json.loads((model.parent / "config.json").read_text())
    tokenizer = json.loads((model.parent / "tokenizer.json").read_text())
    ids = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    folder.mkdir()
    weights = {
        f"model.{name}": torch.from_numpy(part.copy())
        for found in tensors(model)
        for name, part in renamed(*found)
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = WhisperConfig(
        architectures=["WhisperForConditionalGeneration"],
        dtype="float16",
        d_model=WIDTH,
        encoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * WIDTH,
        decoder_layers=LAYERS,
        decoder_attention_heads=HEADS,
        decoder_ffn_dim=4 * WIDTH,
    )
    config.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    ends = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(ends))
    (folder / "generation_config.json").write_text(json.dumps(_generation(given, ids)))
    return folder


def _generation(given: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    codes = {text: at for text, at in ids.items() if at in given["lang_ids"]}
    return {
        "alignment_heads": given["alignment_heads"],
        "begin_suppress_tokens": given["suppress_ids_begin"],
        "suppress_tokens": given["suppress_ids"],
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "decoder_start_token_id": START,
        "prev_sot_token_id": PREVIOUS,
        "no_timestamps_token_id": NO_TIMES,
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "is_multilingual": True,
        "lang_to_id": codes,
        "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
        "return_timestamps": False,
    }
