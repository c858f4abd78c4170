"""Tensors as llama.cpp's converter writes them into an mmproj file, from transformers' state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.nn import functional

from tests.worker.models.gguf_writing import adjacent

SUFFIXES = (".weight", ".bias", ".input_max", ".input_min", ".output_max", ".output_min")
OMNI, OMNI_2_5 = "qwen3_omni_moe_thinker", "qwen2_5_omni_thinker"
OMNIS = (OMNI, OMNI_2_5)
QWEN3 = ("qwen3_vl", "qwen3_5", OMNI)
DEEPSEEK = ("deepseek_ocr", "deepseek_ocr2")
GLM = ("glm4v", "glm4v_moe", "glm_ocr")


def layers_in(config: Any) -> Any:
    """The section about the layers that the file's own keys are about."""
    return getattr(config.vision_config, "encoder_config", config.vision_config)


def kind_of(config: Any) -> str:
    if config.model_type == "llava" and config.vision_config.model_type == "pixtral":
        return "pixtral"
    return str(config.model_type)


def layers_of(config: Any) -> int:
    """LLaVA's file leaves out what is behind the layer whose output is taken."""
    count: int = first_of(layers_in(config), "num_hidden_layers", "depth")
    if kind_of(config) == "llava":
        count += 1 + config.vision_feature_layer
    return count


def first_of(section: Any, *keys: str) -> Any:
    return next(getattr(section, key) for key in keys if hasattr(section, key))


def tensors_of(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in the place of one."""
    kind = kind_of(config)
    if kind == "llava":
        yield from of_old_llava(name, tensor, layers_of(config))
    elif kind == "lfm2_vl" and name.endswith("patch_embedding.weight"):
        patch = config.vision_config.patch_size
        yield name, tensor.unflatten(1, (patch, patch, 3)).movedim(-1, 1)
    elif "patch_embed.proj.weight" in name:
        yield "v.patch_embd.weight", tensor[:, :, 0]
        yield "v.patch_embd.weight.1", tensor[:, :, 1]
    elif "patch_embed.proj.bias" in name:
        yield "v.patch_embd.bias", tensor
    elif ".attn.qkv." in name and kind not in QWEN3 + GLM + DEEPSEEK:
        for part, rows in zip("qkv", tensor.chunk(3), strict=True):
            yield name.replace("qkv", part), rows
    elif name.startswith("audio_tower.") and kind == OMNI:
        yield name, of_blocks(name, tensor)
    elif name.startswith("audio_tower.conv") and kind == OMNI_2_5 and name.endswith("bias"):
        yield name, tensor[:, None]
    elif kind in QWEN3 and "merger" in name:
        levels = getattr(config.vision_config, "deepstack_visual_indexes", [])
        yield _of_merger(name, levels), tensor
    elif kind == "minicpmv4_6" and "merger." in name:
        yield _of_minicpmv(name), tensor
    elif kind == "minicpmv":
        yield from _of_resampled(name, tensor)
    elif kind in DEEPSEEK:
        yield _of_documents(name, tensor)
    elif kind == "gemma4":
        yield _of_gemma4(name, tensor, config.vision_config.patch_size)
    elif kind == "internvl":
        yield _of_internvl(name), tensor
    elif kind == "llama4":
        yield _of_llama4(name), tensor
    elif kind == "janus":
        yield _of_janus(name), tensor
    else:
        yield name, tensor


def of_blocks(name: str, tensor: Tensor) -> Tensor:
    """A tensor of Qwen3-ASR's or Qwen3-Omni's encoder."""
    wide = "conv2d" in name and name.endswith(".bias")
    return tensor[:, None, None] if wide else tensor


def _of_merger(name: str, levels: list[int]) -> str:
    for theirs, ours in (
        ("visual.merger_list", "visual.deepstack_merger_list"),
        (".ln_q.", ".norm."),
        (".mlp.0.", ".linear_fc1."),
        (".mlp.2.", ".linear_fc2."),
    ):
        name = name.replace(theirs, ours)
    module, tail = name.removeprefix("visual.").split(".", 1)
    if module == "merger":
        inner = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
        key, kind = tail.split(".")
        return f"{inner[key]}.{kind}"
    number, key, kind = tail.split(".")
    return f"v.deepstack.{levels[int(number)]}.{key.removeprefix('linear_')}.{kind}"


def _of_minicpmv(name: str) -> str:
    for theirs, ours in (
        ("vision_tower.vit_merger.", "v.vit_merger."),
        ("self_attn.out_proj", "attn_out"),
        ("self_attn.", "attn_"),
        ("_proj.", "."),
        ("layer_norm1", "ln1"),
        ("v.vit_merger.pre_norm", "v.vit_merger.ds_ln"),
        ("v.vit_merger.linear_1", "v.vit_merger.ds_ffn_up"),
        ("v.vit_merger.linear_2", "v.vit_merger.ds_ffn_down"),
        ("merger.mlp.0.pre_norm", "mm.input_norm"),
        ("merger.mlp.0.linear_1", "mm.up"),
        ("merger.mlp.0.linear_2", "mm.down"),
    ):
        name = name.replace(theirs, ours)
    return name


def _of_resampled(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The names of MiniCPM-V's own converter, which has the feed-forward's products the other way
    round, and adds a table that follows from the sizes."""
    if name.startswith("resampler.attn.in_proj_"):
        for part, rows in zip("qkv", tensor.chunk(3), strict=True):
            yield name.replace("in_proj_", f"{part}."), rows
        return
    if name == "resampler.proj":
        yield "resampler.proj.weight", tensor.T
        yield "resampler.pos_embed_k", tensor.new_zeros(4, len(tensor))
        return
    for theirs, ours in (
        ("vpm.", "v."),
        ("encoder.layers", "blk"),
        ("embeddings.", ""),
        ("_proj", ""),
        ("self_attn.", "attn_"),
        ("layer_norm", "ln"),
        ("layernorm", "ln"),
        ("mlp.fc1", "ffn_down"),
        ("mlp.fc2", "ffn_up"),
        ("embedding", "embd"),
    ):
        name = name.replace(theirs, ours)
    yield name, tensor


def _of_documents(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """The makers' names as the converter has them, and its own where the gguf package has none
    yet."""
    if name.startswith("model.vision_model."):
        return name, tensor
    for theirs, released in (
        ("vision_tower.vision_tower.", "vision_tower.vision_encoder."),
        ("vision_tower.sam_encoder.", "model.sam_model."),
        ("sam_model.layers.", "sam_model.blocks."),
        (".layer_norm1.", ".norm1."),
        (".layer_norm2.", ".norm2."),
        ("patch_embed.projection", "patch_embed.proj"),
        ("neck.conv1", "neck.0"),
        ("neck.norm1", "neck.1"),
        ("neck.conv2", "neck.2"),
        ("neck.norm2", "neck.3"),
        ("sam_model.proj.conv1", "sam_model.net_2"),
        ("sam_model.proj.conv2", "sam_model.net_3"),
        ("vision_tower.query_768_resolution", "v.resample_query_768"),
        ("vision_tower.query_1024_resolution", "v.resample_query_1024"),
        ("vision_tower.vision_encoder.norm", "v.post_ln"),
        ("vision_tower.vision_encoder.layers.", "v.blk."),
        ("input_layernorm", "ln1"),
        ("post_attention_layernorm", "ln2"),
        ("self_attn.o_proj", "attn_out"),
        ("self_attn.", "attn_"),
        ("multi_modal_projector", "mm.model.fc"),
        ("view_separator", "v.view_seperator"),
        ("image_newline", "v.image_newline"),
    ):
        name = name.replace(theirs, released)
    if name.startswith("v.blk."):
        name = name.replace("mlp.", "ffn_").replace("_proj.", ".")
    if name.endswith(("pos_embed", "rel_pos_h", "rel_pos_w")):
        name += ".weight"
    return name, tensor[None] if name.endswith("seperator") else tensor


def _of_gemma4(name: str, tensor: Tensor, patch: int) -> tuple[str, Tensor]:
    if name.startswith("audio_tower."):
        return _of_conformer(name.replace("audio_tower.", "conformer.", 1), tensor)
    name = name.replace("vision_tower.vision_model.", "vision_tower.")
    name = name.replace("vision_tower.encoder.", "vision_model.model.").replace(".linear.", ".")
    if name.endswith("position_embedding_table"):
        name += ".weight"
    elif name.endswith("input_proj.weight"):
        tensor = tensor.unflatten(1, (patch, patch, 3)).movedim(-1, 1)
    inside = name.startswith("vision_model.")
    return name if inside else f"model.{name}", tensor[None] if not tensor.ndim else tensor


def _of_conformer(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    name = name.replace(".linear.", ".")
    if name.endswith("per_dim_scale"):
        return f"{name}.weight", functional.softplus(tensor)
    if "depthwise_conv1d" in name:
        tensor = tensor[:, 0]
    return name, tensor[None] if not tensor.ndim else tensor


def _of_internvl(name: str) -> str:
    if "multi_modal_projector" in name:
        key, kind = name.split(".")[-2:]
        number = {"layer_norm": 0, "linear_1": 1, "linear_2": 3}[key]
        return f"mm.model.mlp.{number}.{kind}"
    unnamed = "lambda_" in name or "position_embedding" in name
    return f"model.{name}.weight" if unnamed else f"model.{name}"


def _of_llama4(name: str) -> str:
    if name.endswith("positional_embedding_vlm"):
        return "vision_model.positional_embedding_vlm.weight"
    if name == "multi_modal_projector.linear_1.weight":
        return "mm.model.fc.weight"
    # Older files, which are most, call the second norm so; here, those of one layer do.
    name = name.replace("vision_model.model.layers.1.post_attention_layernorm", "v.blk.1.ln2")
    return name.removeprefix("model.")


def _of_janus(name: str) -> str:
    """The converter counts the projector's products itself."""
    return name.replace("aligner.fc1", "mm.0").replace("aligner.hidden_layers.0", "mm.1")


def of_old_llava(name: str, tensor: Tensor, layers: int) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of the converter in tools/mtmd/legacy-models, which calls fc1 ffn_down."""
    name = name.removeprefix("vision_tower.vision_model.")
    if name.startswith("post_layernorm"):
        return
    if name.startswith("encoder.layers.") and int(name.split(".")[2]) >= layers:
        return
    for theirs, ours in (
        ("multi_modal_projector.linear_1", "mm.0"),
        ("multi_modal_projector.linear_2", "mm.2"),
        ("pre_layrnorm", "v.pre_ln"),
        ("encoder.layers", "v.blk"),
        ("embeddings.class_embedding", "v.class_embd"),
        ("embeddings.patch_embedding", "v.patch_embd"),
        ("embeddings.position_embedding", "v.position_embd"),
        ("_proj", ""),
        ("self_attn.", "attn_"),
        ("layer_norm", "ln"),
        ("mlp.fc1", "ffn_down"),
        ("mlp.fc2", "ffn_up"),
    ):
        name = name.replace(theirs, ours)
    yield name, tensor


INTERNVL = (
    "vision_tower.embeddings.patch_embeddings",
    "vision_tower.embeddings.position_embeddings",
)


def as_released(name: str) -> str:
    """What the converter is given, where this release of transformers has other names."""
    name = name.removeprefix("model.").replace(
        "mm_input_projection_weight", "mm_input_projection.weight"
    )
    name = name.replace("vision_encoder.", "vision_tower.")
    name = name.replace("vision_projection.", "multi_modal_projector.")
    if name.startswith("connector"):
        return f"model.{name}"
    if name.startswith("vision_model."):
        return f"model.{name}"
    if name.startswith(
        (
            "vision_tower.embeddings.class",
            "vision_tower.embeddings.p",
            "vision_tower.encoder.layers",
            "vision_tower.post_",
            "vision_tower.pre_",
        )
    ) and not name.startswith(INTERNVL):
        return name.replace("vision_tower.", "vision_tower.vision_model.", 1)
    return name


def as_written(name: str, tensor: Tensor, config: Any) -> Tensor:
    if "mm_soft_emb_norm" in name:
        return tensor + 1
    if config.vision_config.model_type == "pixtral" and ("q_proj" in name or "k_proj" in name):
        return adjacent(tensor, config.vision_config.num_attention_heads)
    return tensor
