"""A model that sees in two GGUF files, as llama.cpp's converter makes them of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from tests.worker.models import gguf_keys as keys
from tests.worker.models import step_files
from tests.worker.models import test_gguf_m3 as minimax_m3
from tests.worker.models import test_recurrent_gguf as recurrent
from tests.worker.models.gguf_writing import Conversion, Made, write
from tests.worker.models.test_gguf_families import CONVERSIONS
from tests.worker.vision.mmproj_tensors import (
    OMNIS,
    SUFFIXES,
    as_released,
    as_written,
    first_of,
    kind_of,
    layers_in,
    layers_of,
    tensors_of,
)

Writer = gguf.GGUFWriter
ARCH = gguf.MODEL_ARCH.MMPROJ


def sections(writer: Writer, config: Any) -> None:
    writer.add_rope_dimension_sections([*config.rope_parameters["mrope_section"], 0])


def qwen3_vl_text(writer: Writer, config: Any) -> None:
    sections(writer, config)
    writer.add_num_deepstack_layers(2)


def qwen3_omni_text(writer: Writer, config: Any) -> None:
    sections(writer, config)
    writer.add_num_deepstack_layers(0)  # whatever the tower has
    keys.some_experts(writer, config)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def qwen3_asr_text(writer: Writer, config: Any) -> None:
    """Positions of a sound are the same number thrice."""
    writer.add_rope_dimension_sections([4, 2, config.head_dim // 2 - 6, 0])
    writer.add_num_deepstack_layers(0)


def glm4v_moe_text(writer: Writer, config: Any) -> None:
    sections(writer, config)
    keys.glm45(writer, config)


TEXT_HALVES = {
    "llama": CONVERSIONS["llama-plain"],
    "mistral": CONVERSIONS["mistral-small3"],
    "qwen2": CONVERSIONS["qwen2-plain"],
    "qwen3": CONVERSIONS["qwen3-plain"],
    "granite": CONVERSIONS["granite"],
    "gemma3_text": CONVERSIONS["gemma3-of-six"],
    "gemma4_text": CONVERSIONS["gemma4-shared-kv"],
    "gemma4_unified_text": CONVERSIONS["gemma4-unified"],
    "qwen2_vl_text": Conversion(gguf.MODEL_ARCH.QWEN2VL, sections),
    "qwen2_5_vl_text": Conversion(gguf.MODEL_ARCH.QWEN2VL, sections),
    "qwen2_5_omni_text": Conversion(gguf.MODEL_ARCH.QWEN2VL, sections),
    "qwen3_vl_text": Conversion(gguf.MODEL_ARCH.QWEN3VL, qwen3_vl_text),
    "qwen3_omni_moe_text": Conversion(gguf.MODEL_ARCH.QWEN3VLMOE, qwen3_omni_text),
}


def halves_apart(rotating: int) -> Any:
    """Of GLM-4, whose heads of 16 numbers rotate by so many, with adjacent pairs."""

    def parts(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Any:
        if ".q_proj." in name or ".k_proj." in name:
            heads = tensor.unflatten(0, (-1, 16))
            turning, rest = heads[:, :rotating], heads[:, rotating:]
            tensor = torch.cat((turning[:, 0::2], turning[:, 1::2], rest), 1).flatten(0, 1)
        yield name, tensor

    return parts


TEXT_HALVES |= {
    "glm4v_text": Conversion(gguf.MODEL_ARCH.GLM4, sections, own_parts=halves_apart(8)),
    "glm_ocr_text": Conversion(gguf.MODEL_ARCH.GLM4, sections, own_parts=halves_apart(16)),
    "glm4v_moe_text": Conversion(gguf.MODEL_ARCH.GLM4_MOE, glm4v_moe_text),
}
TEXT_HALVES["llama4_text"] = CONVERSIONS["llama4-of-four"]
TEXT_HALVES["paddleocr_vl_text"] = Conversion(gguf.MODEL_ARCH.PADDLEOCR, sections)
TEXT_HALVES["deepseek_v3"] = CONVERSIONS["deepseek-v3-plain"]
TEXT_HALVES["deepseek_ocr2_text"] = Conversion(gguf.MODEL_ARCH.DEEPSEEK2OCR, keys.deepseek_ocr2)
TEXT_HALVES["step3p5"] = step_files.GGUF
RECURRENT_HALVES = {
    "lfm2": recurrent.CONVERSIONS["lfm2"],
    "qwen3_5_text": recurrent.CONVERSIONS["qwen35"],
    "qwen3_5_moe_text": recurrent.CONVERSIONS["qwen35-moe-of-four"],
}
DRAWS = ("vqmodel.", "generation_aligner.", "generation_embeddings.", "generation_head.")
"""What Janus draws with."""
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


def lfm2_vl(writer: Writer, config: Any) -> None:
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(config.downsample_factor)


def llava(writer: Writer, config: Any) -> None:
    writer.add_vision_use_gelu(config.vision_config.hidden_act == "gelu")


def janus(writer: Writer, config: Any) -> None:
    writer.add_vision_use_gelu(config.vision_config.hidden_act == "gelu")


def qwen2_5_vl(writer: Writer, config: Any) -> None:
    writer.add_vision_use_silu(True)
    writer.add_vision_n_wa_pattern(config.vision_config.fullatt_block_indexes[0] + 1)
    writer.add_vision_window_size(config.vision_config.window_size)


def qwen2_5_omni(writer: Writer, config: Any) -> None:
    """What the model hears with is in the same file, with a table of the sines."""
    qwen2_5_vl(writer, config)
    writer.add_clip_has_audio_encoder(True)
    in_blocks(writer, config)


def qwen3_vl(writer: Writer, config: Any) -> None:
    vision = config.vision_config
    writer.add_vision_use_gelu(True)
    writer.add_vision_spatial_merge_size(vision.spatial_merge_size)
    levels = getattr(vision, "deepstack_visual_indexes", ())
    writer.add_vision_is_deepstack_layers([layer in levels for layer in range(vision.depth)])


def qwen3_omni(writer: Writer, config: Any) -> None:
    """What the model hears with is in the same file."""
    qwen3_vl(writer, config)
    writer.add_clip_has_audio_encoder(True)
    writer.add_clip_audio_projector_type("qwen3a")
    in_blocks(writer, config)


def in_blocks(writer: Writer, config: Any) -> None:
    """Says how Qwen3-ASR and Omnis hear, but for how many windows are a block and how many blocks
    see one another; and writes a table of positions, which follows from the sizes."""
    audio = config.audio_config
    writer.add_audio_projection_dim(config.text_config.hidden_size)
    writer.add_audio_embedding_length(audio.d_model)
    writer.add_audio_feed_forward_length(audio.encoder_ffn_dim)
    writer.add_audio_block_count(audio.encoder_layers)
    writer.add_audio_head_count(audio.encoder_attention_heads)
    writer.add_audio_num_mel_bins(audio.num_mel_bins)
    writer.add_audio_attention_layernorm_eps(1e-5)
    writer.add_tensor("a.position_embd.weight", torch.zeros(1500, audio.d_model).numpy())


def glm4v(writer: Writer, config: Any) -> None:
    writer.add_vision_use_silu(True)


def minicpmv(writer: Writer, config: Any) -> None:
    writer.add_vision_use_gelu(True)
    four = config.downsample_mode == "4x"
    writer.add_vision_projector_scale_factor(2 if four else 4)
    writer.add_array("clip.vision.wa_layer_indexes", [config.insert_layer_id])


def resampler(writer: Writer, config: Any) -> None:
    """Older files have 0 queries, which stands for 64."""
    writer.add_bool("clip.has_minicpmv_projector", True)
    writer.add_int32("clip.minicpmv_version", 3)
    writer.add_uint32("clip.minicpmv_query_num", config.query_num)
    writer.add_vision_use_gelu(True)


def gemma4(writer: Writer, config: Any) -> None:
    """The converter writes clip.vision.projector_type, and not how many patches become a row where
    it is three each way. What the model hears with is in the same file."""
    audio = config.audio_config
    if audio is None:
        return
    writer.add_clip_has_audio_encoder(True)
    writer.add_clip_audio_projector_type("gemma4a")
    writer.add_audio_projection_dim(config.text_config.hidden_size)
    writer.add_audio_embedding_length(audio.hidden_size)
    writer.add_audio_feed_forward_length(4 * audio.hidden_size)
    writer.add_audio_block_count(audio.num_hidden_layers)
    writer.add_audio_head_count(audio.num_attention_heads)
    writer.add_audio_num_mel_bins(audio.subsampling_conv_channels[0])
    writer.add_audio_attention_layernorm_eps(1e-5)


def internvl(writer: Writer, config: Any) -> None:
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(round(1 / config.downsample_ratio))
    writer.add_vision_preproc_max_tiles(6)


def llama4(writer: Writer, config: Any) -> None:
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(round(1 / config.vision_config.pixel_shuffle_ratio))


def deepseek_ocr2(writer: Writer, config: Any) -> None:
    kept = config.vision_config.encoder_config.num_key_value_heads
    writer.add_uint32("clip.vision.attention.head_count_kv", kept)
    deepseek_ocr(writer, config)


def deepseek_ocr(writer: Writer, config: Any) -> None:
    sam = config.vision_config.sam_config
    writer.add_vision_use_gelu(True)
    writer.add_vision_window_size(sam.window_size)
    writer.add_vision_sam_layers_count(sam.num_hidden_layers)
    writer.add_vision_sam_embedding_length(sam.hidden_size)
    writer.add_vision_sam_head_count(sam.num_attention_heads)


KINDS: dict[str, tuple[str, Callable[[Writer, Any], None]]] = {
    "gemma3": ("gemma3", gemma3),
    "gemma4": ("gemma4v", gemma4),
    "idefics3": ("idefics3", idefics3),
    "smolvlm": ("idefics3", idefics3),
    "llava": ("mlp", llava),
    "pixtral": ("pixtral", pixtral),
    "mistral3": ("pixtral", pixtral),
    "lfm2_vl": ("lfm2", lfm2_vl),
    "lighton_ocr": ("lightonocr", pixtral),
    "qwen2_vl": ("qwen2vl_merger", lambda writer, config: None),
    "qwen2_5_vl": ("qwen2.5vl_merger", qwen2_5_vl),
    "qwen2_5_omni_thinker": ("qwen2.5o", qwen2_5_omni),
    "qwen3_vl": ("qwen3vl_merger", qwen3_vl),
    "qwen3_omni_moe_thinker": ("qwen3vl_merger", qwen3_omni),
    "qwen3_5": ("qwen3vl_merger", qwen3_vl),
    "glm4v": ("glm4v", glm4v),
    "glm4v_moe": ("glm4v", glm4v),
    "glm_ocr": ("glm4v", glm4v),
    "minicpmv": ("resampler", resampler),
    "minicpmv4_6": ("minicpmv4_6", minicpmv),
    "deepseek_ocr": ("deepseekocr", deepseek_ocr),
    "deepseek_ocr2": ("deepseekocr2", deepseek_ocr2),
    "internvl": ("internvl", internvl),
    "janus": ("janus_pro", janus),
    "llama4": ("llama4", llama4),
}
"""clip.projector_type and the family's own keys, by the model_type of the whole."""


def write_keys(writer: Writer, config: Any) -> None:
    """All but the tensors."""
    vision = layers_in(config)
    seen = getattr(config.vision_config, "sam_config", vision)
    kind, own = KINDS[kind_of(config)]
    writer.add_clip_has_vision_encoder(True)
    if kind == "gemma4v" or own is qwen3_omni:
        writer.add_clip_vision_projector_type(kind)
    else:
        writer.add_clip_projector_type(kind)
    writer.add_vision_projection_dim(0 if kind == "resampler" else config.text_config.hidden_size)
    image, patch = (_side(getattr(seen, key, 560)) for key in ("image_size", "patch_size"))
    if kind in ("minicpmv4_6", "resampler"):  # that of a square of as many pixels as a slice has
        image = 448
    if hasattr(vision, "num_patches"):  # the converter writes that of the table of positions
        image = int(vision.num_patches**0.5) * patch
    writer.add_vision_image_size(image)
    writer.add_vision_patch_size(patch)
    writer.add_vision_embedding_length(getattr(vision, "embed_dim", vision.hidden_size))
    # Of Qwen2-VL it is another size.
    usual = round(getattr(vision, "mlp_ratio", 1) * vision.hidden_size)
    if kind != "janus_pro":
        usual = getattr(vision, "intermediate_size", vision.hidden_size)
    writer.add_vision_feed_forward_length(usual)
    writer.add_vision_block_count(layers_of(config))
    writer.add_vision_head_count(first_of(vision, "num_attention_heads", "num_heads"))
    writer.add_vision_attention_layernorm_eps(_eps(vision))
    writer.add_vision_image_mean(MEAN)
    writer.add_vision_image_std(STD)
    own(writer, config)


def _eps(vision: Any) -> float:
    return float(getattr(vision, "layer_norm_eps", getattr(vision, "rms_norm_eps", 1e-5)))


def _side(size: Any) -> int:
    return int(size if isinstance(size, int) else size[0])


def write_mmproj(path: Path, theirs: Any, made: Made = Writer) -> None:
    config = getattr(theirs, "seen_config", theirs.config)
    writer = made(str(path), gguf.MODEL_ARCH_NAMES[ARCH])
    write_keys(writer, config)
    own_names = kind_of(config) in OMNIS
    names = gguf.get_tensor_name_map(ARCH, 128)
    for name, whole in _state_of(theirs):
        if "language_model" in name or "text_model" in name or name.startswith("lm_head"):
            continue
        if own_names and not name.startswith(("visual.", "audio_tower.")):
            continue
        if ".head." in name or any(each in name for each in DRAWS):
            continue  # pools, or draws, and isn't written
        if "audio_bos_eos_token" in name:
            continue
        for inner, tensor in tensors_of(as_released(name), whole, config):
            found = names.get_name(inner, try_suffixes=SUFFIXES) or inner
            assert found.startswith(("v.", "a.", "mm.", "resampler.")), name
            written = as_written(name, tensor, config)
            writer.add_tensor(found, written.contiguous().float().numpy())
    finish(writer)


def _state_of(theirs: Any) -> Iterable[tuple[str, Tensor]]:
    """By the makers' names, of a model that transformers has no class of."""
    seen = getattr(theirs, "seen_with", None)
    state: dict[str, Tensor] = theirs.state_dict() if seen is None else seen()
    return state.items()


@dataclass(frozen=True)
class TextHalf:
    """The decoder, as `write` takes a model."""

    config: Any
    weights: dict[str, Tensor]

    def state_dict(self) -> dict[str, Tensor]:
        return self.weights


def write_text_half(
    path: Path, theirs: Any, made: Made = Writer, how: Conversion | None = None
) -> None:
    """The decoder's file. how: None: as of all models with such a decoder."""
    config = theirs.config.text_config
    if config.model_type == "llama4_text":  # its decoder is a whole model
        write(path, theirs.language_model, TEXT_HALVES[config.model_type], made)
        return
    inner = getattr(theirs.model, "text_model", None)
    inner = inner or getattr(theirs.model, "language_model", theirs.model)
    weights = {f"model.{name}": tensor for name, tensor in inner.state_dict().items()}
    if config.model_type in RECURRENT_HALVES:
        folder = path.parent / "text half"
        folder.mkdir(exist_ok=True)
        if not config.tie_word_embeddings:
            weights["lm_head.weight"] = theirs.lm_head.weight.detach()
        saved = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(saved, folder / "model.safetensors")
        recurrent.write(path, folder, config, RECURRENT_HALVES[config.model_type])
        return
    half = TextHalf(config, weights | {"lm_head.weight": theirs.lm_head.weight.detach()})
    if config.model_type == "minimax_m3_vl_text":
        minimax_m3.write(path, half)
        return
    write(path, half, how or TEXT_HALVES[config.model_type], made)


def write_vocabulary(writer: Writer, made: Tokenizer, bos: str, eos: str) -> int:
    """Writes a tokenizer of bytes. Returns how many tokens it has."""
    by_id = {number: text for text, number in made.get_vocab(with_added_tokens=True).items()}
    texts = [by_id[number] for number in sorted(by_id)]
    added = made.get_added_tokens_decoder()
    kinds = [(3 if added[at].special else 4) if at in added else 1 for at in sorted(by_id)]
    merges = json.loads(made.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(texts.index(bos))
    writer.add_eos_token_id(texts.index(eos))
    return len(texts)


def finish(writer: Writer) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
