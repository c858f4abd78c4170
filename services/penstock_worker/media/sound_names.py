"""Names of the tensors that hear, in the hub's files and in llama.cpp's mmproj files, and ours."""

from __future__ import annotations

import re
from functools import partial

from penstock.formats.gguf import GGUFFile
from penstock_worker.media.biased_conformer import of_biased_conformer
from penstock_worker.media.block_conformer import of_block_conformer
from penstock_worker.media.embedder import of_embedder
from penstock_worker.vision.mmproj_names import IN_LAYER
from penstock_worker.weights.files import read_tensors
from penstock_worker.weights.opening import open_tower_weights
from penstock_worker.weights.stored import StoredTensor

_TOWER = re.compile(r"^(?:model\.)?(?:encoder|audio_tower)\.")
_HUB_LAYER = re.compile(
    r"^layers\.(\d+)\.(.+?)(?:\.linear)?(\.weight|\.bias|\.(?:in|out)put_(?:min|max))$"
)
_HUB_MODULE = re.compile(r"^(.+?)(\.weight|\.bias)$")

_HUB_IN_LAYER = {
    "self_attn_layer_norm": "norm1",
    "final_layer_norm": "norm2",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.out_proj": "out_proj",
    "fc1": "up_proj",
    "fc2": "down_proj",
}
_OF_TOWER = {
    "embed_positions": "position_embedding",
    "layer_norm": "last_norm",
    "ln_post": "last_norm",
    "proj": "projector",
    "proj1": "projector.1",
    "proj2": "projector.2",
}
_UNUSED = (".num_batches_tracked", ".audio_bos_eos_token.weight")
"""Ends of names of what nothing reads; the second is in Qwen2.5-Omni's files."""
_PROJECTOR = re.compile(r"^(?:model\.)?(?:multi_modal_projector|embed_audio)\.")
_QUERIES = re.compile(r"^(?:model\.)?projector\.")
"""What Granite Speech has behind its encoder."""
_OF_PROJECTOR = {
    "linear": "projector",
    "linear_1": "projector.1",
    "linear_2": "projector.2",
    "embedding_projection": "projector",
}
ZERO_BIASES = ("k_proj",)
"""Modules of every layer without biases, where others that share the product have some."""


def from_hub(name: str) -> str | None:
    """Returns our name for a tensor of a tower or a projector; None for another half's. An unknown
    name stays as it is, without its prefix."""
    if _QUERIES.match(name):
        return name.removeprefix("model.")
    if (found := of_embedder(name) or of_biased_conformer(name)) is not None:
        return found
    if _PROJECTOR.match(name):
        return _known(_PROJECTOR.sub("", name), _OF_PROJECTOR)
    if not _TOWER.match(name) or name.endswith(_UNUSED):
        return None
    inner = _TOWER.sub("", name)
    layer = _HUB_LAYER.fullmatch(inner)
    if layer is not None:
        number, module, kind = layer.groups()
        return f"layers.{number}.{_HUB_IN_LAYER.get(module, module)}{kind}"
    return _known(inner, _OF_TOWER)


def _known(name: str, modules: dict[str, str]) -> str:
    match = _HUB_MODULE.fullmatch(name)
    return name if match is None else modules.get(match[1], match[1]) + match[2]


HEARS = ("a.", "mm.a.")
"""Begin the names of what a model hears with."""
_LAYER = re.compile(r"a\.blk\.(\d+)\.(\w+)\.(weight|bias)")
_MODULES = {
    "a.conv1d.1": "conv1",
    "a.conv1d.2": "conv2",
    **{f"a.conv2d.{number}": f"conv2d{number}" for number in (1, 2, 3)},
    "a.conv_out": "conv_out",
    "a.position_embd": "position_embedding",
    "a.post_ln": "last_norm",
    "mm.a.fc": "projector",
    "mm.a.mlp.1": "projector.1",
    "mm.a.mlp.2": "projector.2",
}
_FLAT = frozenset(f"conv{which}.bias" for which in ("1", "2", "2d1", "2d2", "2d3"))


_CONFORMER_LAYER = re.compile(r"a\.blk\.(\d+)\.(\w+)\.(weight|bias|(?:in|out)put_(?:min|max))")
_IN_CONFORMER = {
    "ffn_norm": "feed_forward1.pre_layer_norm",
    "ffn_up": "feed_forward1.ffw_layer_1",
    "ffn_down": "feed_forward1.ffw_layer_2",
    "ffn_post_norm": "feed_forward1.post_layer_norm",
    "ffn_norm_1": "feed_forward2.pre_layer_norm",
    "ffn_up_1": "feed_forward2.ffw_layer_1",
    "ffn_down_1": "feed_forward2.ffw_layer_2",
    "ffn_post_norm_1": "feed_forward2.post_layer_norm",
    "attn_pre_norm": "norm_pre_attn",
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_k_rel": "self_attn.relative_k_proj",
    "per_dim_scale": "self_attn.per_dim_scale",
    "attn_out": "self_attn.post",
    "attn_post_norm": "norm_post_attn",
    "conv_norm": "lconv1d.pre_layer_norm",
    "conv_pw1": "lconv1d.linear_start",
    "conv_dw": "lconv1d.depthwise_conv1d",
    "norm_conv": "lconv1d.conv_norm",
    "conv_pw2": "lconv1d.linear_end",
    "ln2": "norm_out",
}
_CONFORMER_MODULES = {
    "a.conv1d.0": "subsample_conv_projection.layer0.conv",
    "a.conv1d.0.norm": "subsample_conv_projection.layer0.norm",
    "a.conv1d.1": "subsample_conv_projection.layer1.conv",
    "a.conv1d.1.norm": "subsample_conv_projection.layer1.norm",
    "a.input_projection": "subsample_conv_projection.input_proj_linear",
    "a.pre_encode.out": "output_proj",
    "mm.a.input_projection": "projector",
}


def of_conformer(name: str) -> str | None:
    """Returns our name for a tensor of Gemma 4's file; None for what the model sees with."""
    return _of_conformer(name, _IN_CONFORMER, _CONFORMER_MODULES)


def _of_conformer(name: str, in_layer: dict[str, str], modules: dict[str, str]) -> str | None:
    layer = _CONFORMER_LAYER.fullmatch(name)
    if layer is not None and layer[2] in in_layer:
        return f"layers.{layer[1]}.{in_layer[layer[2]]}.{layer[3]}"
    module, _, kind = name.rpartition(".")
    if module in modules:
        return f"{modules[module]}.{kind}"
    return name if name.startswith(HEARS) else None


_IN_GEMMA3N = _IN_CONFORMER | {
    "ln1": "norm_pre_attn",
    "ln2": "norm_post_attn",
    "layer_pre_norm": "norm_out",
    "linear_pos": "self_attn.relative_k_proj",
}
_GEMMA3N_MODULES = _CONFORMER_MODULES | {
    "a.pre_encode.out": "subsample_conv_projection.input_proj_linear",
    "mm.a.embedding": "projector.embedding",
    "mm.a.hard_emb_norm": "projector.own_norm",
    "mm.a.soft_emb_norm": "projector.norm",
}
_GROWTH = re.compile(r"a\.blk\.(\d+)\.per_dim_scale")


def of_gemma3n(name: str) -> str | None:
    """Returns our name for a tensor of Gemma 3n's file, which has queries' factors as the hub has
    them; None for what the model sees with."""
    growth = _GROWTH.fullmatch(name)
    if growth is not None:
        return f"layers.{growth[1]}.self_attn.per_dim_scale"
    return _of_conformer(name, _IN_GEMMA3N, _GEMMA3N_MODULES)


def from_mmproj(name: str) -> str | None:
    """Returns our name for a tensor; None for what the model sees with. An unknown name stays."""
    layer = _LAYER.fullmatch(name)
    if layer is not None and layer[2] in IN_LAYER:
        return f"layers.{layer[1]}.{IN_LAYER[layer[2]]}.{layer[3]}"
    module, _, kind = name.rpartition(".")
    if module in _MODULES:
        return f"{_MODULES[module]}.{kind}"
    return name if name.startswith(HEARS) else None


_NAMES = {
    "gemma3na": of_gemma3n,
    "gemma4a": of_conformer,
    "gemma4ua": of_conformer,
    "granite_speech": of_block_conformer,
}
"""What reads a file's names, by its projector; the others' are Whisper's."""


def mmproj_sounds(path: str) -> dict[str, StoredTensor]:
    """Returns a file's tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    file = GGUFFile(path, vocabulary=False)
    kinds = (file.metadata.get(f"clip.{part}projector_type") for part in ("audio.", ""))
    names = next((_NAMES[kind] for kind in kinds if kind in _NAMES), from_mmproj)
    return read_tensors(file, names, _FLAT)


HUB_MODULES = frozenset().union(_HUB_IN_LAYER, _OF_TOWER, _OF_PROJECTOR)
open_audio_tower = partial(
    open_tower_weights,
    from_hub=from_hub,
    read_mmproj=mmproj_sounds,
    hub_modules=HUB_MODULES,
    zero_biases=ZERO_BIASES,
)
"""Opens what a model hears with (see open_tower_weights)."""
