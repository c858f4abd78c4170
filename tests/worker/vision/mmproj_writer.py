"""A model that sees in two GGUF files, as llama.cpp's converter makes them of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from torch import Tensor

from tests.worker.models.test_gguf_families import CONVERSIONS, adjacent, write

Writer = gguf.GGUFWriter
ARCH = gguf.MODEL_ARCH.MMPROJ
TEXT_HALVES = {
    "llama": ("LlamaForCausalLM", "llama-plain"),
    "mistral": ("MistralForCausalLM", "llama-plain"),
    "gemma3_text": ("Gemma3ForCausalLM", "gemma3-of-six"),
}
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.25]


def gemma3(writer: Writer, config: Any) -> None:
    vision = config.vision_config
    side = int(config.mm_tokens_per_image**0.5)
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(vision.image_size // vision.patch_size // side)


def idefics3(writer: Writer, config: Any) -> None:
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(config.scale_factor)
    writer.add_vision_preproc_image_size(96)


def pixtral(writer: Writer, config: Any) -> None:
    silu = config.vision_config.hidden_act == "silu"
    (writer.add_vision_use_silu if silu else writer.add_vision_use_gelu)(True)
    if hasattr(config, "spatial_merge_size"):
        writer.add_vision_spatial_merge_size(config.spatial_merge_size)


KINDS: dict[str, tuple[str, Callable[[Writer, Any], None]]] = {
    "gemma3": ("gemma3", gemma3),
    "idefics3": ("idefics3", idefics3),
    "smolvlm": ("idefics3", idefics3),
    "llava": ("pixtral", pixtral),
    "mistral3": ("pixtral", pixtral),
}
"""By the model_type of the whole: clip.projector_type, and the family's own keys."""


def write_keys(writer: Writer, config: Any) -> None:
    """All but the tensors."""
    vision = config.vision_config
    kind, own = KINDS[config.model_type]
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(kind)
    writer.add_vision_projection_dim(config.text_config.hidden_size)
    writer.add_vision_image_size(vision.image_size)
    writer.add_vision_patch_size(vision.patch_size)
    writer.add_vision_embedding_length(vision.hidden_size)
    writer.add_vision_feed_forward_length(vision.intermediate_size)
    writer.add_vision_block_count(vision.num_hidden_layers)
    writer.add_vision_head_count(vision.num_attention_heads)
    writer.add_vision_attention_layernorm_eps(getattr(vision, "layer_norm_eps", 1e-5))
    writer.add_vision_image_mean(MEAN)
    writer.add_vision_image_std(STD)
    own(writer, config)


def write_mmproj(path: Path, theirs: Any) -> None:
    config = theirs.config
    writer = Writer(str(path), gguf.MODEL_ARCH_NAMES[ARCH])
    write_keys(writer, config)
    names = gguf.get_tensor_name_map(ARCH, config.vision_config.num_hidden_layers)
    for name, tensor in theirs.state_dict().items():
        if "language_model" in name or "text_model" in name or name.startswith("lm_head"):
            continue
        if ".head." in name:
            continue  # pools, and isn't written
        found = names.get_name(_as_released(name), try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        writer.add_tensor(found, _as_written(name, tensor, config).contiguous().float().numpy())
    _finish(writer)


def _as_released(name: str) -> str:
    """What the converter is given, where this release of transformers has other names."""
    name = name.removeprefix("model.").replace(
        "mm_input_projection_weight", "mm_input_projection.weight"
    )
    if name.startswith("connector"):
        return f"model.{name}"
    if name.startswith("vision_model."):
        return f"model.{name}"
    if name.startswith(("vision_tower.embeddings", "vision_tower.encoder", "vision_tower.post_")):
        return name.replace("vision_tower.", "vision_tower.vision_model.", 1)
    return name


def _as_written(name: str, tensor: Tensor, config: Any) -> Tensor:
    if "mm_soft_emb_norm" in name:
        return tensor + 1
    if config.vision_config.model_type == "pixtral" and ("q_proj" in name or "k_proj" in name):
        return adjacent(tensor, config.vision_config.num_attention_heads)
    return tensor


def write_text_half(path: Path, theirs: Any) -> None:
    """The decoder's file."""
    config = theirs.config.text_config
    name, case = TEXT_HALVES[config.model_type]
    half = getattr(transformers, name)(config).eval()
    inner = getattr(theirs.model, "text_model", None) or theirs.model.language_model
    half.model.load_state_dict(inner.state_dict())
    with torch.no_grad():
        half.lm_head.weight.copy_(theirs.lm_head.weight)
    write(path, half, CONVERSIONS[case])


def _finish(writer: Writer) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
