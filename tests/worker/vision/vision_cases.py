"""Tiny models that see, with random weights: transformers' own, and ours of the same files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch

from penstock.formats.fields import Fields
from penstock.formats.weight_files import find_safetensors
from penstock.forms.anyres import AnyresImages
from penstock.forms.canvas import CanvasImages
from penstock.forms.fitted import FittedImages
from penstock.forms.rows import RowImages
from penstock.forms.tiled import TiledImages
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts, MediaFacts, MediaKind, Preparation
from penstock.model.prepared_model import GenerationDefaults, PreparedModel, WeightFiles
from penstock.prepare.folder import FORMAT_VERSION, MANIFEST
from penstock.prepare.from_hub_folder import tower_of
from penstock.prepare.hub_config import read_config
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.vision.vision_model import VisionModel, open_tower
from penstock_worker.weights.opening import open_weights
from tests.worker.vision.case import (
    COLOURS,
    PLACEHOLDER,
    POSITIONS,
    QWEN3_TOWER,
    QWEN_PATCHES,
    QWEN_TOKENS,
    QWEN_TOWER,
    SECTIONS,
    SECTIONS_3,
    SEES,
    TEXT,
    WIDE,
    Case,
    fixed,
)
from tests.worker.vision.cohere_cases import OF_COHERE
from tests.worker.vision.deepseek_vl_cases import OF_DEEPSEEK
from tests.worker.vision.documents import set_documents, with_few_queries
from tests.worker.vision.gemma3n_cases import OF_GEMMA3N
from tests.worker.vision.minicpm_cases import OF_MINICPM
from tests.worker.vision.newer_cases import NEWER
from tests.worker.vision.omni import OF_OMNI
from tests.worker.vision.patch_cases import OF_PATCHES

LLAMA = TEXT | {"class": "LlamaConfig", "head_dim": 16}
MISTRAL = TEXT | {"class": "MistralConfig", "head_dim": 16}
CLIP = SEES | {"class": "CLIPVisionConfig", "image_size": 28, "patch_size": 7}
SIGLIP = SEES | {"class": "SiglipVisionConfig", "image_size": 30, "patch_size": 7}
INTERNVIT = SEES | {
    "class": "InternVLVisionConfig",
    "image_size": [24, 24],
    "patch_size": [6, 6],
    "layer_scale_init_value": 0.8,
}
PIXTRAL = SEES | {"class": "PixtralVisionConfig", "image_size": 64, "patch_size": 4}
LLAMA4 = TEXT | {
    "head_dim": 16,
    "intermediate_size": 40,
    "intermediate_size_mlp": 100,
    "num_hidden_layers": 4,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 19,
    "floor_scale": 16,
}


def llama4(image: int, vision: dict[str, Any], text: dict[str, Any] | None = None) -> Case:
    """Tiles of so many pixels each way, in patches of four."""
    factor = round(1 / vision.get("pixel_shuffle_ratio", 0.5))
    sees = {"image_size": image, "patch_size": 4, "intermediate_size": 48 * factor**2}
    inner = dict.fromkeys(("projector_input_dim", "projector_output_dim", "vision_output_dim"), 56)
    settings = {
        "text_config": LLAMA4 | (text or {}),
        "vision_config": SEES | sees | inner | vision,
        "image_token_index": PLACEHOLDER,
    }
    pixels = msgspec.structs.replace(COLOURS, rounded=True)
    rows = (image // 4 // factor) ** 2
    return Case("Llama4", settings, FittedImages(pixels=pixels, tile=image, rows=rows))


FORMS = [[24, 24], [24, 48], [48, 24], [48, 48], [24, 72]]
CASES: dict[str, Case] = (
    {
        "llava": Case(
            "Llava",
            {"text_config": LLAMA, "vision_config": CLIP, "image_token_index": PLACEHOLDER},
            fixed(28, 16),
        ),
        "llava-mistral-with-the-class-token": Case(
            "Llava",
            {
                "text_config": MISTRAL | {"sliding_window": 21},
                "vision_config": CLIP | {"hidden_act": "gelu"},
                "image_token_index": PLACEHOLDER,
                "vision_feature_select_strategy": "full",
                "vision_feature_layer": -1,
            },
            fixed(28, 17),
        ),
        "llava-siglip": Case(
            "Llava",
            {
                "text_config": LLAMA,
                "vision_config": SIGLIP,
                "image_token_index": PLACEHOLDER,
                "vision_feature_select_strategy": "full",
                "multimodal_projector_bias": False,
            },
            fixed(30, 16),
        ),
        "llava-qwen2": Case(
            "Llava",
            {
                "text_config": WIDE | {"class": "Qwen2Config"},
                "vision_config": CLIP,
                "image_token_index": PLACEHOLDER,
                "vision_feature_layer": 1,
                "projector_hidden_act": "gelu_pytorch_tanh",
            },
            fixed(28, 16),
        ),
        "idefics3": Case(
            "Idefics3",
            {
                "text_config": LLAMA,
                "vision_config": SEES | {"image_size": 32, "patch_size": 4},
                "image_token_id": PLACEHOLDER,
            },
            TiledImages(pixels=COLOURS, longest_edge=96, tile=24, rows=9),
        ),
        "smolvlm": Case(
            "SmolVLM",
            {
                "text_config": LLAMA,
                "vision_config": SEES | {"image_size": 24, "patch_size": 4},
                "image_token_id": PLACEHOLDER,
                "scale_factor": 3,
                "tie_word_embeddings": True,
            },
            TiledImages(pixels=COLOURS, longest_edge=96, tile=24, rows=4),
        ),
        "qwen2-vl": Case(
            "Qwen2VL",
            {
                "text_config": WIDE | {"rope_parameters": SECTIONS},
                "vision_config": QWEN_TOWER
                | {"depth": 2, "embed_dim": 48, "hidden_size": 96, "mlp_ratio": 2},
            }
            | QWEN_TOKENS,
            QWEN_PATCHES,
        ),
        "qwen2.5-vl": Case(
            "Qwen2_5_VL",
            {
                "text_config": WIDE | {"rope_parameters": SECTIONS},
                "vision_config": QWEN_TOWER
                | {
                    "depth": 3,
                    "hidden_size": 48,
                    "out_hidden_size": 96,
                    "intermediate_size": 52,
                    "window_size": 16,
                    "fullatt_block_indexes": [1],
                },
            }
            | QWEN_TOKENS,
            QWEN_PATCHES,
        ),
        "exaone-4.5": Case(
            "Exaone4_5_",
            {
                "text_config": WIDE | {"class": "Exaone4Config", "sliding_window": 21},
                "vision_config": QWEN_TOWER
                | {
                    "depth": 3,
                    "hidden_size": 48,
                    "num_key_value_heads": 2,
                    "out_hidden_size": 96,
                    "intermediate_size": 52,
                    "window_size": 16,
                    "fullatt_block_indexes": [1],
                },
            }
            | QWEN_TOKENS,
            QWEN_PATCHES,
        ),
        "qwen3-vl": Case(
            "Qwen3VL",
            {
                "text_config": TEXT | {"head_dim": 16, "rope_parameters": SECTIONS_3},
                "vision_config": QWEN3_TOWER,
            }
            | QWEN_TOKENS,
            QWEN_PATCHES,
        ),
        "qwen3-vl-moe": Case(
            "Qwen3VLMoe",
            {
                "text_config": TEXT
                | {
                    "head_dim": 16,
                    "rope_parameters": SECTIONS_3,
                    "num_experts": 5,
                    "num_experts_per_tok": 2,
                    "moe_intermediate_size": 40,
                    "mlp_only_layers": [1],
                },
                "vision_config": QWEN3_TOWER
                | {"num_position_embeddings": 9, "depth": 2}
                | {"deepstack_visual_indexes": [0]},
            }
            | QWEN_TOKENS,
            QWEN_PATCHES,
        ),
        "internvl": Case(
            "InternVL",
            {
                "text_config": WIDE | {"class": "Qwen2Config"},
                "vision_config": INTERNVIT | {"attention_bias": True},
                "image_token_id": PLACEHOLDER,
            },
            CanvasImages(pixels=COLOURS, tile=24, rows=4),
        ),
        "internvl-with-norms-of-queries": Case(
            "InternVL",
            {
                "text_config": TEXT | {"class": "Qwen3Config", "head_dim": 16},
                "vision_config": INTERNVIT | {"use_qk_norm": True, "norm_type": "rms_norm"},
                "image_token_id": PLACEHOLDER,
                "projector_hidden_act": "gelu_pytorch_tanh",
                "vision_feature_layer": -2,
            },
            CanvasImages(pixels=COLOURS, tile=24, rows=4),
        ),
        "pixtral": Case(
            "Llava",
            {
                "text_config": MISTRAL,
                "vision_config": PIXTRAL,
                "image_token_index": PLACEHOLDER,
                "vision_feature_select_strategy": "full",
                "vision_feature_layer": -1,
            },
            RowImages(pixels=COLOURS, longest_edge=64, patch=4),
        ),
        "mistral3": Case(
            "Mistral3",
            {
                "text_config": MISTRAL,
                "vision_config": PIXTRAL | {"hidden_act": "silu"},
                "image_token_index": PLACEHOLDER,
            },
            RowImages(pixels=COLOURS, longest_edge=64, patch=8),
        ),
        "llava-onevision": Case(
            "LlavaOnevision",
            {
                "text_config": WIDE | {"class": "Qwen2Config"},
                "vision_config": SIGLIP | {"image_size": 24, "patch_size": 6},
                "image_token_index": PLACEHOLDER,
                "image_grid_pinpoints": FORMS,
                "vision_aspect_ratio": "anyres_max_2",
            },
            AnyresImages(
                pixels=COLOURS, tile=24, side=4, forms=tuple((a, b) for a, b in FORMS), most=2
            ),
        ),
        "llama4": llama4(24, {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
        "llama4-squares-of-four": llama4(
            32,
            {"pixel_shuffle_ratio": 0.25},
            {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
        ),
        "gemma3": Case(
            "Gemma3",
            {
                "text_config": TEXT
                | {"class": "Gemma3TextConfig", "head_dim": 16, "sliding_window": 11},
                "vision_config": SIGLIP | {"image_size": 32, "patch_size": 4},
                "mm_tokens_per_image": 16,
                "image_token_index": PLACEHOLDER,
            },
            fixed(32, 16),
        ),
    }
    | OF_PATCHES
    | NEWER
    | OF_DEEPSEEK
    | OF_COHERE
    | OF_MINICPM
    | OF_OMNI
    | OF_GEMMA3N
)


def make_theirs(case: str) -> Any:
    """transformers' model with random weights; biases, norms and tables too, which start at 0
    and 1."""
    import transformers

    torch.manual_seed(5)
    config = CASES[case].config()
    config._attn_implementation = "eager"
    made = CASES[case].made
    if made is None:
        made = getattr(transformers, f"{CASES[case].family}ForConditionalGeneration")
    model: Any = made(config).eval()
    plus_one = "Gemma3F" in type(model).__name__
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name or "ln_q" in name:
                parameter.normal_(0 if plus_one else 1, 0.3)
            elif "mm_input" in name or (("vision" in name or "visual" in name) and "embed" in name):
                parameter.normal_(0, 0.3)
        if CASES[case].family.startswith("Gemma4"):
            set_buffers(model)
        if CASES[case].family == "DeepseekOcr2":
            set_documents(model, fewer=CASES[case].made is None)
    if CASES[case].family == "PaddleOCRVL":  # as the makers' own code has it
        model.model.visual.vision_model.embeddings.interpolation_align_corners = False
    return model


def set_buffers(model: Any) -> None:
    """What Gemma 4 learns beside its parameters; and the padding's row of the layers' inputs, which
    starts as zeros."""
    for name, buffer in model.named_buffers():
        if name.endswith(("input_min", "output_min")):
            buffer.fill_(-2.0 + len(name) % 7 / 9)
        elif name.endswith(("input_max", "output_max")):
            buffer.fill_(1.0 + len(name) % 5 / 9)
        elif "std_" in name or name.endswith("layer_scalar"):
            buffer.normal_(1, 0.3)
    for name, parameter in model.named_parameters():
        if name.endswith("embed_tokens_per_layer.weight"):
            parameter[model.config.text_config.pad_token_id].normal_(0, 0.3)


@dataclass(frozen=True)
class Ours:
    """Our model, read from the files that transformers wrote."""

    config: ModelConfig
    decoder: DecoderModel
    tower: VisionModel
    files: WeightFiles


def saved(model: Any, folder: Path) -> tuple[ModelConfig, WeightFiles]:
    getattr(model, "write", model.save_pretrained)(folder)
    path = folder / "config.json"
    config = with_few_queries(read_config(Fields(json.loads(path.read_text()), str(path))))
    files = tuple(map(str, find_safetensors(folder)))
    fields = Fields(json.loads(path.read_text()), str(path))
    tower = tower_of(fields)
    return config, WeightFiles(format="safetensors", files=files, dtype="float32", tower=tower)


def facts_of(preparation: Preparation, placeholder: int = PLACEHOLDER) -> KindFacts:
    return KindFacts(
        preparation=preparation, placeholder="<item>", token="<item>", token_id=placeholder
    )


def prepared_folder(case: str, folder: Path) -> PreparedModel:
    """A case's prepared folder, as far as a worker reads it."""
    return written(make_theirs(case), {"image": facts_of(CASES[case].preparation)}, folder)


def written(model: Any, kinds: dict[MediaKind, KindFacts], folder: Path) -> PreparedModel:
    """The prepared folder of transformers' model."""
    return manifest(*saved(model, folder), kinds, folder)


def manifest(
    config: ModelConfig, files: WeightFiles, kinds: dict[MediaKind, KindFacts], folder: Path
) -> PreparedModel:
    """A prepared folder that says no more than this."""
    prepared = PreparedModel(
        format_version=FORMAT_VERSION,
        name=folder.name,
        source="test",
        config=config,
        generation=GenerationDefaults(),
        weights=files,
        digest="0" * 64,
        has_chat_template=False,
        media=MediaFacts(kinds=kinds),
    )
    (folder / MANIFEST).write_bytes(msgspec.json.encode(prepared))
    return prepared


def opened(config: ModelConfig, files: WeightFiles, dtype: torch.dtype = torch.float32) -> Ours:
    return Ours(
        config,
        DecoderModel(config, open_weights(files, config, dtype), POSITIONS),
        VisionModel(config, open_tower(files, dtype)),
        files,
    )


_FOLDERS: list[TemporaryDirectory[str]] = []
"""Folders of what `both` has made, kept until the process ends."""


@cache
def both(case: str) -> tuple[Any, Ours]:
    """Made once for all tests of a file."""
    theirs, folder = make_theirs(case), TemporaryDirectory()
    _FOLDERS.append(folder)
    return theirs, opened(*saved(theirs, Path(folder.name)))
