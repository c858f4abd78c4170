"""config.json of models of 2025 and 2026 that see, as a stranger may write it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.attention_spec import LatentSpec
from penstock.model.config import ModelConfig
from penstock.model.mobilenet_spec import QueryBlock
from penstock.model.projector_spec import (
    NormedTwiceProjector,
    SquarePoolProjector,
    TwiceProjector,
    TwoTowersProjector,
    WindowProjector,
)
from penstock.model.tower_spec import (
    AxialPositions,
    LearnedPositions,
    MergingSpec,
    RotaryPositions,
    WindowSpec,
)
from penstock.prepare.hub_config import read_config
from penstock_families.vision.deepseek_ocr2 import NECK_NORM
from tests.shared.families.release_configs import releases
from tests.shared.releases.reading import RELEASES

FROM_MEMORY = releases("newer_vision")

MODELS: dict[str, dict[str, Any]] = {
    "lighton-ocr": RELEASES["lightonai/LightOnOCR-1B-1025"]["config"],
    "minicpm-v-4.6": RELEASES["openbmb/MiniCPM-V-4.6-AWQ"]["config"],
    "granite4-vision": RELEASES["copy/granite_vision_4_1"]["config"],
    "gemma-4-12b": RELEASES["google/gemma-4-12B"]["config"],
    "gemma-4-31b": RELEASES["nvidia/Gemma-4-31B-IT-NVFP4"]["config"],
    "gemma-4-e2b": RELEASES["google/gemma-4-E2B-it"]["config"],
    "minimax-m3": RELEASES["nvidia/MiniMax-M3-NVFP4"]["config"],
    "kimi-k2.5": RELEASES["moonshotai/Kimi-K2.5"]["config"],
    "kimi-vl": RELEASES["moonshotai/Kimi-VL-A3B-Instruct"]["config"],
} | FROM_MEMORY


def read(model: str, **changes: Any) -> ModelConfig:
    """changes: of nested values, `vision_config__depth=3`."""
    values = copy.deepcopy(MODELS[model])
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = values
        for each in sections:
            section = section[each]
        section[key] = value
    return read_config(Fields(values, model))


def test_towers_of_newer_models_are_read() -> None:
    lighton = read("lighton-ocr")
    assert lighton.vision is not None
    assert (lighton.vision.tower.num_layers, lighton.vision.patches_in_row) == (24, 4)
    assert lighton.tie_word_embeddings
    lfm = read("lfm2-vl-450m")
    assert lfm.vision is not None
    assert lfm.vision.tower.positions == LearnedPositions(side=16, stretched=True)
    assert (lfm.vision.patches_in_row, lfm.vision.image_size) == (4, None)
    granite, llava, paddle = (
        read(model) for model in ("granite-vision-3.2-2b", "llava-v1.6-mistral-7b", "paddleocr-vl")
    )
    assert granite.vision is not None
    assert granite.vision.tower.taken == (4, 8, 16, 27)
    assert (granite.vision.tower.width, granite.vision.row_multiplier) == (4 * 1152, 12.0)
    assert llava.vision is not None
    assert (llava.vision.tower.num_layers, llava.vision.tower.taken) == (23, ())
    assert paddle.vision is not None
    assert paddle.vision.tower.positions == RotaryPositions(table=27, by_edges=True)
    assert paddle.ropes[0].axes == (0,) * 16 + (1,) * 24 + (2,) * 24
    kimi = read("kimi-k2.5")
    assert kimi.vision is not None
    assert (kimi.vision.tower.num_layers, kimi.vision.patches_in_row) == (27, 4)
    assert kimi.vision.tower.positions == RotaryPositions(
        table=64, cubic=True, by_turns=True, adjacent=True
    )
    smaller = read("kimi-vl")
    assert smaller.vision == kimi.vision
    assert smaller.layers[1].attention is not None
    assert smaller.layers[1].attention.latent == LatentSpec(
        rank=512, rotating=64, plain=128, value=128
    )
    minimax = read("minimax-m3")
    assert minimax.vision is not None
    tower = minimax.vision.tower
    assert (tower.num_layers, tower.head_dim, tower.frames, tower.together) == (32, 80, 2, 4)
    assert tower.positions == RotaryPositions(timed=True)
    assert minimax.vision.projector == TwiceProjector(side=2, inner=6144)
    assert not any(rope.sections for rope in minimax.ropes)
    unbounded = read("minimax-m3", vision_config__vision_segment_max_frames=None).vision
    assert unbounded is not None
    assert unbounded.tower.together == 0
    minicpm = read("minicpm-v-4.6")
    assert minicpm.vision is not None
    assert minicpm.vision.tower.positions == LearnedPositions(
        side=70, fractional=True, of_parts=True
    )
    assert minicpm.vision.tower.merging == MergingSpec(behind=6, side=2, inner=4 * 4304)
    assert (minicpm.vision.tower.num_layers, minicpm.vision.patches_in_row) == (27, 16)
    assert not any(rope.sections for rope in minicpm.ropes)
    larger = read("minicpm-v-4.6", downsample_mode="4x").vision
    assert larger is not None
    assert (larger.tower.merging, larger.patches_in_row) == (None, 4)
    four = read("granite4-vision").vision
    assert four is not None
    assert four.tower.taken == (27, 9, 15, 21)
    assert four.levels_behind == (8, 5, 2, 11, 14, 17, 20)
    assert (four.row_width(2560), four.row_multiplier) == (8 * 2560, 1.0)
    assert isinstance(four.projector, WindowProjector)
    assert [part.name for part in four.projector.parts[:2]] == ["layerwise.3", "layerwise.0"]
    assert (four.projector.num_heads, four.projector.side(24)) == (18, 12)
    dense, small = (read(f"gemma-4-{name}") for name in ("31b", "e2b"))
    assert dense.vision is not None
    assert (dense.vision.spans_whole, dense.vision.windowed_spans) == (True, True)
    assert dense.vision.projector == SquarePoolProjector(factor=3, eps=1e-6, standardised=True)
    rotary = RotaryPositions(theta=100.0, columns_first=True, by_halves=True)
    assert dense.vision.tower.positions == AxialPositions(side=10_240, rotary=rotary)
    assert (dense.vision.tower.head_dim, dense.vision.tower.clipped) == (72, False)
    ignoring = [dense.ignores_spans(dense.layer(number).attention) for number in range(6)]
    assert ignoring == [False] * 5 + [True]
    assert small.vision is not None
    assert not small.vision.spans_whole
    assert (small.vision.tower.clipped, small.vision.patches_in_row) == (True, 9)
    assert small.per_layer_inputs is not None
    assert small.per_layer_inputs.media_id == 0
    unified = read("gemma-4-12b").vision
    assert unified is not None
    assert (unified.tower.num_layers, unified.tower.patch, unified.patches_in_row) == (0, 48, 1)
    assert (unified.tower.hidden_size, unified.spans_whole, unified.windowed_spans) == (
        3840,
        True,
        True,
    )
    assert unified.tower.positions == AxialPositions(side=1120)
    qianfan = read("qianfan-ocr").vision
    assert qianfan is not None
    assert (qianfan.tower.qkv_bias, qianfan.patches_in_row, qianfan.image_size) == (True, 4, 448)
    assert [lfm.layer(number).recurrent is None for number in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("model", "changes", "named"),
    [
        ("lighton-ocr", {"projector_hidden_act": "silu"}, "projector_hidden_act"),
        ("lighton-ocr", {"vision_feature_layer": -2}, "vision_feature_layer"),
        ("lighton-ocr", {"spatial_merge_size": 0}, "spatial_merge_size"),
        ("lighton-ocr", {"vision_config__model_type": "siglip_vision_model"}, "pixtral is"),
        ("lighton-ocr", {"text_config__model_type": "llama"}, "qwen3 are"),
        ("granite-vision-3.2-2b", {"vision_feature_layer": [-24] * 17}, "1 to 16 layers"),
        ("granite-vision-3.2-2b", {"vision_feature_layer": []}, "1 to 16 layers"),
        ("granite-vision-3.2-2b", {"vision_feature_layer": [-24, 28]}, "layer 28"),
        ("granite-vision-3.2-2b", {"image_grid_pinpoints": [[384, 10**9]]}, "pinpoints"),
        ("granite-vision-3.2-2b", {"text_config__model_type": "opt"}, "granite are"),
        ("llava-v1.6-mistral-7b", {"vision_feature_select_strategy": "full"}, "class token"),
        ("paddleocr-vl", {"rope_is_neox_style": False}, "rope_is_neox_style"),
        ("paddleocr-vl", {"rope_scaling__mrope_section": [16, 24]}, "mrope_section"),
        ("paddleocr-vl", {"vision_config__image_size": 10**9}, "image_size"),
        ("paddleocr-vl", {"vision_config__spatial_merge_size": 999}, "spatial_merge_size"),
        ("paddleocr-vl", {"vision_config__num_attention_heads": 24 * 24}, "multiple of 4"),
        ("kimi-k2.5", {"vision_config__merge_type": "mean"}, "merge_type"),
        ("kimi-k2.5", {"vision_config__mm_projector_type": "linear"}, "mm_projector_type"),
        ("kimi-k2.5", {"vision_config__merge_kernel_size": [2, 3]}, "merge_kernel_size"),
        ("kimi-k2.5", {"vision_config__init_pos_emb_width": 32}, "pos_emb_width"),
        ("kimi-k2.5", {"vision_config__vt_hidden_size": 10**9}, "hidden_size"),
        ("kimi-k2.5", {"vision_config__mm_hidden_size": 10}, "mm_hidden_size"),
        ("kimi-k2.5", {"text_config__model_type": "llama"}, "kimi_k2 are"),
        ("kimi-vl", {"vision_config__merge_kernel_size": [2]}, "merge_kernel_size"),
        ("kimi-vl", {"vision_config__merge_kernel_size": [999, 999]}, "merge_kernel_size"),
        ("kimi-vl", {"vision_config__init_pos_emb_height": 10**9}, "pos_emb_height"),
        ("kimi-vl", {"vision_config__init_pos_emb_width": 32}, "pos_emb_width"),
        ("kimi-vl", {"vision_config__hidden_size": 10**9}, "hidden_size"),
        ("kimi-vl", {"vision_config__intermediate_size": 0}, "intermediate_size"),
        ("kimi-vl", {"vision_config__num_hidden_layers": 10**9}, "num_layers is 1000000000"),
        ("kimi-vl", {"vision_config__num_attention_heads": 17}, "don't divide"),
        ("kimi-vl", {"vision_config__num_attention_heads": 576}, "multiple of 4"),
        ("kimi-vl", {"vision_config__patch_size": 0}, "patch_size"),
        ("kimi-vl", {"text_config__model_type": "kimi_k2"}, "deepseek_v3 are"),
        ("kimi-vl", {"text_config__topk_method": "greedy"}, "topk_method"),
        ("kimi-vl", {"text_config__scoring_func": "softmax"}, "scoring_func"),
        ("minimax-m3", {"vision_config__rope_mode": "2d"}, "rope_mode"),
        ("minimax-m3", {"vision_config__position_embedding_type": "learned"}, "position_emb"),
        ("minimax-m3", {"vision_config__num_attention_heads": 320}, "at least 6"),
        ("minimax-m3", {"vision_config__num_channels": 4}, "num_channels"),
        ("minimax-m3", {"vision_config__vision_segment_max_frames": 0}, "segment_max_frames"),
        ("minimax-m3", {"vision_config__vision_segment_max_frames": 10**9}, "segment_max_frames"),
        ("minimax-m3", {"projector_hidden_size": 10**9}, "projector_hidden_size"),
        ("minimax-m3", {"projector_hidden_act": "gelu_pytorch_tanh"}, "projector_hidden_act"),
        ("minimax-m3", {"process_image_mode": "anyres"}, "process_image_mode"),
        ("minimax-m3", {"vision_feature_layer": -2}, "vision_feature_layer"),
        (
            "minimax-m3",
            {"vision_config__img_token_compression_config": {"spatial_merge_size": 999}},
            "spatial_merge_size",
        ),
        (
            "minimax-m3",
            {"vision_config__img_token_compression_config": {"token_pruning": 2}},
            "token_pruning",
        ),
        ("minimax-m3", {"text_config__model_type": "llama"}, "minimax_m3_vl_text"),
        ("minicpm-v-4.6", {"downsample_mode": "8x"}, "downsample_mode"),
        ("minicpm-v-4.6", {"merger_times": 2}, "merger_times"),
        ("minicpm-v-4.6", {"merge_kernel_size": [4, 4]}, "merge_kernel_size"),
        ("minicpm-v-4.6", {"drop_vision_last_layer": True}, "drop_vision_last_layer"),
        ("minicpm-v-4.6", {"insert_layer_id": 27}, "insert_layer_id"),
        ("minicpm-v-4.6", {"vision_config__window_kernel_size": [2, 1]}, "window_kernel_size"),
        ("minicpm-v-4.6", {"vision_config__intermediate_size": 60_000}, "intermediate_size"),
        ("minicpm-v-4.6", {"text_config__model_type": "llama"}, "qwen3_5_text are"),
        ("qianfan-ocr", {"downsample_ratio": 0.3}, "downsample_ratio"),
        ("qianfan-ocr", {"vision_config__norm_type": "batch_norm"}, "norm_type"),
        ("qianfan-ocr", {"text_config__model_type": "qwen2"}, "qwen3 are"),
        ("granite4-vision", {"downsample_rate": "4"}, "downsample_rate"),
        ("granite4-vision", {"downsample_rate": "3/8"}, "half of whose sides remain"),
        ("granite4-vision", {"downsample_rate": "5/10"}, "fill a tile"),
        ("granite4-vision", {"deepstack_layer_map": None}, "deepstack_layer_map"),
        ("granite4-vision", {"deepstack_layer_map": [[-1, 12]]}, "each once"),
        ("granite4-vision", {"deepstack_layer_map": [[-1, 40]]}, "0 to 39"),
        ("granite4-vision", {"deepstack_layer_map": [[-1, 0]] * 17}, "16 with"),
        ("granite4-vision", {"deepstack_layer_map": [[-99, 0]]}, "layer -99"),
        ("granite4-vision", {"spatial_target_layers": [1, 2, 4, 5, 7]}, "up to 4 layers"),
        ("granite4-vision", {"use_spatial_sampling": False}, "use_spatial_sampling"),
        ("granite4-vision", {"qformer_config": {"hidden_size": 768}}, "hidden_size"),
        ("granite4-vision", {"vision_feature_select_strategy": "default"}, "class token"),
        ("granite4-vision", {"text_config__model_type": "llama"}, "granite are"),
        ("gemma-4-31b", {"vision_config__head_dim": 64}, "72|1152"),
        ("gemma-4-31b", {"vision_config__num_key_value_heads": 8}, "as many keys"),
        ("gemma-4-31b", {"vision_config__rope_parameters": {"rope_type": "yarn"}}, "axial"),
        ("gemma-4-31b", {"vision_config__attention_bias": True}, "attention_bias"),
        ("gemma-4-31b", {"vision_config__position_embedding_size": 10**9}, "position_embedding"),
        ("gemma-4-31b", {"vision_config__pooling_kernel_size": 0}, "pooling_kernel_size"),
        ("gemma-4-31b", {"vision_config__hidden_activation": "tanh"}, "hidden_activation"),
        ("gemma-4-31b", {"text_config__model_type": "llama"}, "gemma4_text are"),
        ("gemma-4-12b", {"vision_config__mm_embed_dim": 10**9}, "mm_embed_dim"),
        ("gemma-4-12b", {"vision_config__mm_posemb_size": 10**9}, "mm_posemb_size"),
        ("gemma-4-12b", {"vision_config__output_proj_dims": 768}, "output_proj_dims"),
        ("gemma-4-12b", {"vision_config__patch_size": 0}, "patch_size"),
        ("gemma-4-12b", {"vision_config__pooling_kernel_size": 10**9}, "pooling_kernel_size"),
        ("gemma-4-12b", {"vision_config__patch_size": 86}, "a square of 3 patches of 86 pixels"),
        ("gemma-4-12b", {"vision_config__model_patch_size": 16}, "model_patch_size"),
        ("gemma-4-12b", {"vision_config__rms_norm_eps": "small"}, "rms_norm_eps"),
        ("gemma-4-12b", {"text_config__model_type": "gemma4_text"}, "gemma4_unified_text are"),
        ("lfm2-vl-450m", {"downsample_factor": 10**9}, "downsample_factor"),
        ("lfm2-vl-450m", {"projector_hidden_size": 10**12}, "projector_hidden_size"),
        ("lfm2-vl-450m", {"projector_hidden_act": "silu"}, "projector_hidden_act"),
        ("lfm2-vl-450m", {"vision_config__num_patches": 255}, "num_patches"),
        ("lfm2-vl-450m", {"vision_config__num_patches": 10**12}, "num_patches"),
        ("lfm2-vl-450m", {"vision_config__model_type": "clip_vision_model"}, "siglip2"),
        ("lfm2-vl-450m", {"text_config__model_type": "llama"}, "lfm2, lfm2_moe are"),
    ],
)
def test_unserved_settings_of_newer_vision_models_are_named(
    model: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(model, **changes)


def test_deepseek_vl_and_janus_see_alike() -> None:
    deepseek, janus = read("deepseek-vl-1.3b").vision, read("janus-pro-1b").vision
    assert deepseek is not None
    tower = deepseek.tower
    assert (tower.num_layers, tower.head_dim, tower.last_norm) == (24, 64, True)
    assert tower.positions == LearnedPositions(side=24)
    assert (deepseek.image_size, deepseek.patches_in_row) == (384, 1)
    assert janus == deepseek


def test_deepseek_vl_has_a_second_tower() -> None:
    larger = read("deepseek-vl-7b").vision
    smaller = read("deepseek-vl-1.3b").vision
    assert larger is not None
    assert smaller is not None
    assert larger.tower == smaller.tower
    second = larger.second
    assert second is not None
    assert (second.taken, second.num_layers, second.intermediate_size) == ((3, 12), 12, 3072)
    assert second.windows == WindowSpec(side=14, whole=(2, 5, 8, 11), grid=64)
    assert larger.projector == TwoTowersProjector(channels=256, norm=NECK_NORM)
    assert (larger.second_size, larger.patches_in_row) == (1024, 9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"high_res_vision_config__global_attn_indexes": []}, "at least one layer"),
        ({"high_res_vision_config__global_attn_indexes": [12]}, "layers of 0 to 11"),
        ({"high_res_vision_config__output_channels": 0}, "output_channels is 0"),
        ({"high_res_vision_config__model_type": "vit"}, "model_type is 'vit'"),
        ({"high_res_vision_config__layer_norm_eps": -1}, "layer_norm_eps.* is -1"),
        ({"high_res_vision_config__use_rel_pos": False}, "use_rel_pos is False"),
        ({"vision_config__model_type": "clip_vision_model"}, "siglip_vision_model is"),
    ],
)
def test_other_second_towers_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read("deepseek-vl-7b", **change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vision_config__use_qk_norm": True}, "use_qk_norm is True"),
        ({"vision_config__depth": 3}, "depth is 3"),
        ({"vision_config__hidden_act": "silu"}, "hidden_act is 'silu'"),
        ({"vision_config__projection_dim": 1024}, "projection_dim is 1024"),
        ({"vision_config__num_image_tokens": 577}, "num_image_tokens is 577"),
        ({"vision_config__mlp_ratio": -1}, "mlp_ratio is -1"),
        ({"vision_config__num_channels": 1}, "num_channels is 1"),
        ({"vision_config__hidden_size": 0}, "hidden_size is 0"),
        ({"vision_config__patch_size": 400}, "patch_size is 400; 1 to 256"),
    ],
)
def test_other_towers_of_janus_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read("janus-pro-1b", **change)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("model", "key", "said"),
    [
        ("minimax-m3", "vision_config__layer_norm_eps", r"layer_norm_eps"),
        ("kimi-k2.5", "vision_config__projector_ln_eps", r"norm_eps|ln_eps"),
        ("gemma-4-e2b", "vision_config__rms_norm_eps", "rms_norm_eps"),
        ("gemma-4-e2b", "audio_config__rms_norm_eps", "rms_norm_eps"),
        ("gemma-4-31b", "vision_config__rope_parameters__rope_theta", "rope_theta"),
        ("minimax-m3", "vision_config__rope_theta", "rope_theta"),
        ("llava-v1.6-mistral-7b", "vision_config__layer_norm_eps", "layer_norm_eps"),
    ],
)
def test_numbers_with_which_a_tower_gives_none(
    model: str, key: str, said: str, value: float
) -> None:
    with pytest.raises(UnsupportedModel, match=rf"({said}).* is {value}(\.0)?; .*finite number"):
        read(model, **{key: value})


def test_gemma_3n_sees_with_convolutions() -> None:
    config = read("gemma-3n-e4b")
    vision = config.vision
    assert config.audio is not None
    assert vision is not None
    net = vision.tower.convolutions
    assert net is not None
    assert [len(stage) for stage in net.stages] == [3, 5, 37, 39]
    attending = [[isinstance(each, QueryBlock) for each in stage] for stage in net.stages]
    assert [sum(each) for each in attending] == [0, 0, 14, 19]
    ends = [stage[-1] for stage in net.stages]
    assert [getattr(end, "outputs", 0) for end in ends] == [128, 256, 640, 1280]
    assert (net.side, vision.image_size, vision.tower.patch) == (16, 768, 48)
    assert vision.projector == NormedTwiceProjector(eps=1e-6, vocab=128, end=0)
    assert read("gemma-3n-e4b", vision_config={"hidden_size": 2048}).vision == vision
    smaller = read("gemma-3n-e4b", vision_config__model_args={"channel_multiplier": 0.3}).vision
    assert smaller is not None
    assert smaller.tower.convolutions is not None
    first = [stage[0] for stage in smaller.tower.convolutions.stages]
    assert [getattr(each, "outputs", 0) for each in first] == [40, 80, 192, 384]  # as timm's
    assert read("gemma-3n-e4b", vision_config=None).vision is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vision_config__architecture": "resnet50"}, "architecture is 'resnet50'"),
        ({"vision_config__hidden_size": 1024}, "hidden_size is 1024; 2048"),
        ({"vision_config__model_args": {"depth": 3}}, "channel_multiplier or msfa"),
        ({"vision_config__model_args": {"channel_multiplier": 0}}, "above 0"),
        ({"vision_config__model_args": {"msfa_output_resolution": 8}}, "soft_tokens.* 64"),
        ({"vision_config__image_size": 384}, "whose 16th part 16 squares divide"),
        ({"vision_config__vocab_offset": 262145}, "eoi_token_id"),
        ({"vision_config__rms_norm_eps": 0}, "eps"),
        ({"image_token_id": 7}, "vocab_size_per_layer_input, or more"),
    ],
)
def test_other_towers_of_gemma_3n_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read("gemma-3n-e4b", **change)
