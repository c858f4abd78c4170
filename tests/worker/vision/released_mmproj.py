"""mmproj files of the tensors of a checkpoint's own files, as llama.cpp's converter makes them of a
release: its names, orders and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.worker.vision.mmproj_tensors import as_released, of_old_llava
from tests.worker.vision.mmproj_writer import MEAN, STD, finish

Writer = gguf.GGUFWriter
Parts = Iterator[tuple[str, Tensor]]
ARCH = gguf.MODEL_ARCH.MMPROJ


@dataclass(frozen=True)
class Kind:
    """projector: clip.projector_type.  side: of the square of pictures that image_size says.  says:
    writes the family's own keys.  parts: the tensors in the place of one of the release."""

    projector: str
    side: Callable[[Any], int]
    says: Callable[[Writer, Any], object]
    parts: Callable[[str, Tensor, Any], Parts]


def of_kimi(config: Any) -> int:
    return int(config.vision_config.pos_emb_height * config.vision_config.patch_size)


def kimi_k25(writer: Writer, config: Any) -> None:
    """The converter writes three of the keys without clip in front."""
    vision = config.vision_config
    writer.add_uint32("vision.pos_emb_height", vision.pos_emb_height)
    writer.add_uint32("vision.pos_emb_width", vision.pos_emb_width)
    writer.add_uint32("vision.pos_emb_time", 4)
    writer.add_vision_use_gelu(True)
    writer.add_vision_attention_layernorm_eps(config.projection_layer_norm_eps)
    writer.add_vision_projector_scale_factor(2)
    writer.add_vision_min_pixels(8 * vision.patch_size**2)
    writer.add_vision_max_pixels(1024 * vision.patch_size**2)


def by_axes(rows: Tensor, heads: int) -> Tensor:
    """Pairs that turn by column first, then those that turn by row, which come in turn."""
    each: Tensor = rows.unflatten(0, (heads, -1, 2, 2))
    return each.transpose(1, 2).reshape(rows.shape)


def kimi_k25_parts(name: str, tensor: Tensor, config: Any) -> Parts:
    if ".wqkv." in name:
        heads = config.vision_config.num_attention_heads
        queries, keys, values = tensor.chunk(3)
        tensor = torch.cat((by_axes(queries, heads), by_axes(keys, heads), values))
    yield _of_kimi(name), tensor


def kimi_vl(writer: Writer, config: Any) -> None:
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(2)
    writer.add_vision_attention_layernorm_eps(1e-5)


def kimi_vl_parts(name: str, tensor: Tensor, config: Any) -> Parts:
    if "pos_emb" in name:
        tensor = tensor.flatten(0, 1)
    if ".wqkv." not in name:
        yield _of_kimi(name), tensor
        return
    for part, rows in zip("qkv", tensor.chunk(3), strict=True):
        yield name.replace("wqkv", f"w{part}"), rows


def _of_kimi(name: str) -> str:
    for number, ours in ((0, 1), (2, 2)):
        name = name.replace(f"mm_projector.proj.{number}.", f"mm_projector.proj.linear_{ours}.")
    return name.replace("encoder.patch_embed.proj", "patch_embed.proj")


# PaddleOCR-VL.


def of_largest(config: Any) -> int:
    return 64


def paddleocr(writer: Writer, config: Any) -> None:
    writer.add_vision_max_pixels(of_largest(config) ** 2)
    writer.add_vision_min_pixels(64)
    writer.add_vision_use_gelu(True)
    writer.add_vision_attention_layernorm_eps(config.vision_config.layer_norm_eps)


def paddleocr_parts(name: str, tensor: Tensor, config: Any) -> Parts:
    yield name.replace("visual.", "model."), tensor


def of_clip(config: Any) -> int:
    return int(config.vision_config.image_size)


# LLaVA-NeXT and Granite Vision, by the converter in tools/mtmd/legacy-models.


def llava_next(writer: Writer, config: Any) -> None:
    """projection_dim is what CLIP has for vectors of whole pictures."""
    count, stated = config.vision_config.num_hidden_layers, config.vision_feature_layer
    layers = [count + 1 + each for each in (stated if isinstance(stated, list) else [stated])]
    writer.kv_data[0]["clip.vision.block_count"].value = max(layers)
    writer.kv_data[0]["clip.vision.projection_dim"].value = 768
    writer.add_vision_use_gelu(False)
    writer.add_vision_attention_layernorm_eps(config.vision_config.layer_norm_eps)
    writer.add_array("clip.vision.feature_layer", layers)
    forms = [side for form in config.image_grid_pinpoints for side in form]
    writer.add_array("clip.vision.image_grid_pinpoints", forms)
    writer.add_string("clip.vision.mm_patch_merge_type", "spatial_unpad")
    writer.add_string("clip.vision.image_aspect_ratio", "anyres")


def llava_next_parts(name: str, tensor: Tensor, config: Any) -> Parts:
    stated, count = config.vision_feature_layer, config.vision_config.num_hidden_layers
    last = count + 1 + (max(stated) if isinstance(stated, list) else stated)
    if name == "image_newline":
        yield "model.image_newline", tensor
        return
    for old, rows in of_old_llava(as_released(name), tensor, last):
        yield old.replace("vision_tower.head", "v.head"), rows


# MiniMax M3.


def minimax_m3(writer: Writer, config: Any) -> None:
    writer.add_vision_use_gelu(True)
    writer.add_vision_attention_layernorm_eps(config.vision_config.layer_norm_eps)
    writer.add_vision_spatial_merge_size(2)


def minimax_m3_parts(name: str, tensor: Tensor, config: Any) -> Parts:
    name = name.replace("block_sparse_moe.", "mlp.")  # as transformers saves it
    if name.endswith("patch_embedding.weight"):
        yield "v.patch_embd.weight", tensor[:, :, 0]
        yield "v.patch_embd.weight.1", tensor[:, :, 1]
    elif name.startswith("patch_merge_mlp.linear_"):
        yield name.replace("patch_merge_mlp.linear_", "mm.merger.fc"), tensor
    elif name.startswith("multi_modal_projector.linear_"):
        yield name.replace("multi_modal_projector.linear_", "mm."), tensor
    else:
        turning = ".q_proj." in name or ".k_proj." in name
        heads = config.vision_config.num_attention_heads
        yield name, axis_after_axis(tensor, heads) if turning else tensor


def axis_after_axis(rows: Tensor, heads: int) -> Tensor:
    """Both halves of what turns by frame, both of what turns by row, both of what turns by column,
    and what doesn't turn."""
    each = list(rows.unflatten(0, (heads, -1)).unbind(1))
    third = len(each) // 6
    order = [
        half * 3 * third + axis * third + pair
        for axis in range(3)
        for half in range(2)
        for pair in range(third)
    ]
    order += range(len(order), len(each))
    return torch.stack([each[number] for number in order], 1).flatten(0, 1)


# Step3-VL and Step 3.7.


def step3vl(writer: Writer, config: Any) -> None:
    writer.add_vision_attention_layernorm_eps(config.vision_config.layer_norm_eps)
    writer.add_vision_projector_scale_factor(4)
    writer.add_vision_preproc_image_size(640)


def step3vl_parts(name: str, tensor: Tensor, config: Any) -> Parts:
    for theirs, own in (
        ("vision_model.vit_downsampler1", "mm.0"),
        ("vision_model.vit_downsampler2", "mm.1"),
        ("vit_large_projector", "mm.model.fc"),
        ("positional_embedding", "positional_embedding.weight"),
        (".gamma", ".weight"),
        ("in_proj_", "in_proj."),
    ):
        name = name.replace(theirs, own)
    yield name, tensor


KINDS = {
    "step3vl": Kind("step3vl", of_clip, step3vl, step3vl_parts),
    "llava-next": Kind("mlp", of_clip, llava_next, llava_next_parts),
    "granite-vision": Kind("mlp", of_clip, llava_next, llava_next_parts),
    "minimax-m3": Kind("minimax_m3", lambda config: 2016, minimax_m3, minimax_m3_parts),
    "kimi-k25": Kind("kimik25", of_kimi, kimi_k25, kimi_k25_parts),
    "kimi-vl": Kind("kimivl", of_kimi, kimi_vl, kimi_vl_parts),
    "paddleocr-vl": Kind("paddleocr", of_largest, paddleocr, paddleocr_parts),
}
OF_FILES = ("v.", "mm.", "model.image_newline")
OF_DECODERS = ("language_model.", "model.embed_tokens", "model.layers.", "model.norm", "lm_head")


def write_released(
    path: Path,
    kind: str,
    theirs: Any,
    files: tuple[str, ...],
    change: Callable[[dict[str, Tensor], Writer], object] = lambda tensors, writer: None,
) -> None:
    """files: of the release.  change: makes another file of what is to be written."""
    config, how, writer = theirs.config, KINDS[kind], Writer(str(path), gguf.MODEL_ARCH_NAMES[ARCH])
    vision = config.vision_config
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(how.projector)
    writer.add_vision_projection_dim(config.text_config.hidden_size)
    writer.add_vision_image_size(how.side(config))
    writer.add_vision_patch_size(vision.patch_size)
    writer.add_vision_embedding_length(vision.hidden_size)
    writer.add_vision_feed_forward_length(vision.intermediate_size)
    writer.add_vision_block_count(vision.num_hidden_layers)
    writer.add_vision_head_count(vision.num_attention_heads)
    writer.add_vision_image_mean(MEAN)
    writer.add_vision_image_std(STD)
    how.says(writer, config)
    names = gguf.get_tensor_name_map(ARCH, 128)
    made: dict[str, Tensor] = {}
    for file in files:
        for name, whole in load_file(file).items():
            if name.startswith(OF_DECODERS):
                continue
            for inner, tensor in how.parts(name.removeprefix("model."), whole, config):
                found: str | None = inner
                if not inner.startswith(OF_FILES):
                    found = names.get_name(inner, try_suffixes=(".weight", ".bias"))
                assert found is not None, name
                made[found] = tensor
    change(made, writer)
    for name, tensor in made.items():
        writer.add_tensor(name, tensor.contiguous().float().numpy())
    finish(writer)
