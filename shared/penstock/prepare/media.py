"""What a hub folder says about the media that its model takes.

preprocessor_config.json, or `image_processor` in processor_config.json, says how pictures become
pixels; config.json which tokens stand for them; defaults are those of transformers' image
processors.  Anything there that nobody here knows is an error, as in config.json.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import UnsupportedModel
from penstock.families.vision.gemma3n import IMAGE as GEMMA3N_IMAGE
from penstock.families.vision.qwen2_5_omni import OMNI_2_5
from penstock.families.vision.qwen3_omni import OMNI
from penstock.formats.fields import Fields
from penstock.formats.small_file import read_json
from penstock.forms.fixed import FixedImages
from penstock.forms.scanned import ScannedImages
from penstock.forms.tiled import TiledImages
from penstock.model.audio_spec import (
    AudioSpec,
    BiasedConformerSpec,
    BlockConformerSpec,
    ConformerSpec,
    EmbedderProjector,
    SoundTowerSpec,
    WaveformSpec,
)
from penstock.model.media_facts import KindFacts, MediaFacts, MediaKind
from penstock.prepare.cohere_readers import aya_vision, command_vision
from penstock.prepare.deepseek_readers import (
    deepseek_vl,
    deepseek_vl_hybrid,
    janus,
    multi_modality,
)
from penstock.prepare.hub_config import classes_of
from penstock.prepare.image_processor import (
    ImageSettings,
    check_all_read,
    fixed_size,
    longest_edge,
    pixels_of,
)
from penstock.prepare.inputs import MAX_JSON_BYTES, PREPROCESSOR, PROCESSOR, VIDEO_PREPROCESSOR
from penstock.prepare.media_tokens import MediaTokens
from penstock.prepare.minicpm_readers import minicpmv, minicpmv4_6, of_minicpm
from penstock.prepare.molmo_readers import CLASS as OF_MOLMO
from penstock.prepare.molmo_readers import OF_FRAMES, molmo2, of_molmo
from penstock.prepare.molmo_readers import VIDEO_CLASS as OF_MOLMO_VIDEOS
from penstock.prepare.patch_readers import (
    gemma4,
    kimi_k25,
    kimi_vl,
    minimax_m3,
    of_kimi,
    of_minimax,
    paddleocr_vl,
    qwen2_vl,
)
from penstock.prepare.phi_readers import PHI4, phi3_pictures, phi4_pictures, phi4_sounds
from penstock.prepare.picture_readers import (
    deepseek_ocr,
    deepseek_ocr2,
    granite4_vision,
    in_shared_space,
    internvl,
    lfm2_vl,
    lighton_ocr,
    llama4,
    llava_next,
    of_deepseek,
    onevision,
    pixtral,
    qianfan_ocr,
)
from penstock.prepare.sound_readers import (
    GEMMA3N,
    GEMMA4,
    GEMMA4_UNIFIED,
    GRANITE,
    OF_SOUNDS,
    gemma3n_sounds,
    gemma4_sounds,
    gemma4_unified_sounds,
    granite_sounds,
)
from penstock.prepare.sounds import OF_WHISPER, read_sounds
from penstock.prepare.step_readers import BUILT_IN as STEP_BUILT_IN
from penstock.prepare.step_readers import step3p7
from penstock.prepare.video_readers import read_video
from penstock.text.tokenizer import Tokenizer

_MAX_ROWS = 65_536
"""Embeddings of a picture, or of a tile."""


def read_media(
    path: Path, config: Fields, tokenizer_json: bytes, audio: AudioSpec | None = None
) -> MediaFacts | None:
    """None for a model that takes no media, and where the folder doesn't say how to prepare them.

    config: config.json.  audio: what the model hears with.  Raises UnsupportedModel for settings
    that can't be followed.
    """
    config = config.replaced({"architectures": classes_of(config)})
    tokenizer = Tokenizer.from_bytes(tokenizer_json, add_bos=False, bos_token_id=None)
    tokens = MediaTokens(tokenizer, config)
    kinds: dict[MediaKind, KindFacts] = {}
    image = _read_pictures(path, config, tokens)
    if image is not None:
        kinds["image"] = image
        video = read_video(*_video_section(path), config, tokens)
        if video is not None:
            kinds["video"] = video
    sound = None if audio is None else _read_sounds(path, config, audio, tokens)
    if sound is not None:
        kinds["audio"] = sound
    return MediaFacts(kinds=kinds) if kinds else None


def _read_sounds(
    path: Path, config: Fields, audio: AudioSpec, tokens: MediaTokens
) -> KindFacts | None:
    values, where = _section(path, "feature_extractor", "audio_processor")
    own = next((each for each in OWN_SOUNDS if each.are_of(audio)), None)
    if own is None:
        return read_sounds(values, where, config, audio, tokens) if values else None
    if values.get("feature_extractor_type") not in own.extractors:
        return None
    return own.read(values, where, audio, tokens)


def _read_pictures(path: Path, config: Fields, tokens: MediaTokens) -> KindFacts | None:
    read = next(
        (READERS[name] for name in config.listed("architectures", str) if name in READERS), None
    )
    found = None if read is None else _settings(path)
    if found is None and read is step3p7:
        found = ImageSettings(STEP_BUILT_IN, str(path))
    if read is None or found is None:
        return None
    if read in (_gemma3n, gemma4) and not config.section("vision_config").values:
        return None  # of a model that hears alone
    image = read(found, config, tokens)
    check_all_read(found)
    return image


def _settings(path: Path) -> ImageSettings | None:
    """Settings of the image processor; None if the folder has none."""
    values, where = _section(path, "image_processor")
    if "media_proc_cfg" in values:
        values = of_kimi(values["media_proc_cfg"], where)
    if "in_token_limit" in values:  # of Kimi-VL's makers, whose file may name no class
        values = {"image_processor_type": "KimiVLImageProcessor"} | values
    if "process_image_mode" in values:
        values = of_minimax(values, where)
    if "norm_mean" in values:
        values = of_minicpm(values)
    if values.get("feature_extractor_type") == GEMMA3N and "image_processor_type" not in values:
        return None  # the file is about sounds alone
    if values.get("image_processor_type") == OF_MOLMO:
        values = of_molmo(values, _values(path / PROCESSOR))
    if not values:
        values, where = of_deepseek(_values(path / PROCESSOR)), str(path / PROCESSOR)
    return ImageSettings(values, where) if values else None


def _section(path: Path, *names: str) -> tuple[dict[str, Any], str]:
    """A part of the processor's settings, whatever its name, and where they stand; empty if the
    folder has none."""
    whole = _values(path / PROCESSOR)
    for name in names:
        inner = whole.get(name)
        if isinstance(inner, dict):
            return inner, f"{path / PROCESSOR}, {name}"
    return _values(path / PREPROCESSOR), str(path / PREPROCESSOR)


def _video_section(path: Path) -> tuple[dict[str, Any], str]:
    """Settings of the video processor, and where they stand, as transformers looks for them: a
    folder that is older than video processors has the same for pictures and videos."""
    inner = _values(path / PROCESSOR).get("video_processor")
    if isinstance(inner, dict):
        return inner, f"{path / PROCESSOR}, video_processor"
    values = _values(path / VIDEO_PREPROCESSOR)
    if values.get("video_processor_type") == OF_MOLMO_VIDEOS:
        values = of_molmo(values, _values(path / PROCESSOR), OF_FRAMES)
    if values:
        return values, str(path / VIDEO_PREPROCESSOR)
    values, where = _values(path / PREPROCESSOR), str(path / PREPROCESSOR)
    return of_minimax(values, where) if "process_image_mode" in values else values, where


def _values(file: Path) -> dict[str, Any]:
    try:
        values = read_json(file, MAX_JSON_BYTES)
    except FileNotFoundError:
        return {}
    if not isinstance(values, dict):
        raise UnsupportedModel(f"{file} is not a JSON object")
    return values


def _llava(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    vision = config.section("vision_config")
    if vision.text("model_type", "") == "pixtral":
        return pixtral(settings, config, tokens)
    height, width, edge, resized = fixed_size(settings)
    patch = _patch(vision)
    _check_side(vision, height, width)
    rows = (height // patch) * (width // patch)
    rows += vision.text("model_type", "clip_vision_model") == "clip_vision_model"
    rows -= config.text("vision_feature_select_strategy", "default") == "default"
    token, token_id = tokens.named("image_token_index", "image_token_id")
    image = FixedImages(
        pixels=pixels_of(settings),
        height=height,
        width=width,
        rows=_bounded(rows, settings),
        shortest_edge=edge,
        resized=resized,
        squared=settings.kind == "LlavaImageProcessor" and settings.flag("do_pad", False),
    )
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)


def _gemma3(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    if settings.flag("do_pan_and_scan", False):
        raise settings.wrong("do_pan_and_scan", "false")
    height, width, edge, _ = fixed_size(settings)
    if edge:
        raise settings.wrong("size", "height and width")
    _check_side(config.section("vision_config"), height, width)
    begin, _ = tokens.named("boi_token_index", "boi_token_id")
    end, _ = tokens.named("eoi_token_index", "eoi_token_id")
    token, token_id = tokens.named("image_token_index", "image_token_id")
    image = ScannedImages(
        pixels=pixels_of(settings),
        height=height,
        width=width,
        rows=_bounded(config.integer("mm_tokens_per_image", 256), settings),
        begin=f"\n\n{begin}",
        end=f"{end}\n\n",
    )
    return KindFacts(preparation=image, placeholder=begin, token=token, token_id=token_id)


def _gemma3n(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """The token that ends a picture is the last of its rows (see NormedTwiceProjector). Settings of
    sounds may stand among those of pictures."""
    settings.ignore(*OF_SOUNDS)
    height, width, edge, _ = fixed_size(settings)
    side = config.section("vision_config").integer("image_size", GEMMA3N_IMAGE)
    if edge or (height, width) != (side, side):
        raise settings.wrong("size", f"height and width of {side}")
    rows = config.integer("vision_soft_tokens_per_image", 256)
    begin, _ = tokens.named("boi_token_id")
    token, token_id = tokens.named("image_token_id")
    image = FixedImages(
        pixels=pixels_of(settings), height=side, width=side, rows=_bounded(rows, settings) + 1
    )
    return KindFacts(
        preparation=image,
        placeholder=token,
        token=token,
        token_id=token_id,
        before=f"\n\n{begin}",
        behind="\n\n",
    )


def _qwen_omni(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Pictures are Qwen2.5-VL's, or Qwen3-VL's. Settings of sounds may stand among theirs."""
    settings.ignore(*OF_WHISPER)
    return qwen2_vl(settings, config, tokens)


def _idefics3(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    vision = config.section("vision_config")
    tile = longest_edge(settings, "max_image_size", 364)
    _check_side(vision, tile, tile)
    side = tile // _patch(vision) // max(config.integer("scale_factor", 2), 1)
    token, token_id = tokens.named("image_token_id")
    image = TiledImages(
        pixels=pixels_of(settings),
        longest_edge=longest_edge(settings, "size", 4 * 364),
        tile=tile,
        rows=_bounded(side * side, settings),
        split=settings.flag("do_image_splitting", True),
    )
    tokens.check(image.around)
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)


def _check_side(vision: Fields, height: int, width: int) -> None:
    side = vision.optional_integer("image_size")
    if side is not None and (height, width) != (side, side):
        raise UnsupportedModel(
            f"{vision.where}: image_size is {side}, but pictures are prepared as {height} × {width}"
        )


def _patch(vision: Fields) -> int:
    patch = vision.integer("patch_size")
    if not 1 <= patch <= 1024:
        raise vision.wrong("patch_size", "1 to 1024 pixels")
    return patch


def _bounded(rows: int, settings: Fields) -> int:
    if not 1 <= rows <= _MAX_ROWS:
        raise UnsupportedModel(
            f"{settings.where}: a picture has {rows} embeddings; 1 to {_MAX_ROWS} are allowed"
        )
    return rows


class OwnSounds(NamedTuple):
    """What is heard with another tower than Whisper's. extractors: classes that a folder's feature
    extractor may have; with any other one, or none, sounds aren't served.  read: how they are
    prepared."""

    tower: type[SoundTowerSpec]
    extractors: tuple[str, ...]
    read: Callable[[dict[str, Any], str, AudioSpec, MediaTokens], KindFacts]
    projector: type | None = None
    """None: any; of several that fit, the first of OWN_SOUNDS counts."""

    def are_of(self, audio: AudioSpec) -> bool:
        """Whether a model hears so."""
        alike = self.projector is None or isinstance(audio.projector, self.projector)
        return isinstance(audio.tower, self.tower) and alike


OWN_SOUNDS = (
    OwnSounds(ConformerSpec, (GEMMA3N,), gemma3n_sounds, EmbedderProjector),
    OwnSounds(ConformerSpec, (GEMMA4,), gemma4_sounds),
    OwnSounds(WaveformSpec, (GEMMA4_UNIFIED,), gemma4_unified_sounds),
    OwnSounds(BiasedConformerSpec, PHI4, phi4_sounds),
    OwnSounds(BlockConformerSpec, (GRANITE,), granite_sounds),
)
Reader = Callable[[ImageSettings, Fields, MediaTokens], KindFacts]

READERS: dict[str, Reader] = {
    "LlavaForConditionalGeneration": _llava,
    "Gemma3ForConditionalGeneration": _gemma3,
    "Gemma3nForConditionalGeneration": _gemma3n,
    "Gemma4ForConditionalGeneration": gemma4,
    "Gemma4UnifiedForConditionalGeneration": gemma4,
    "Idefics3ForConditionalGeneration": _idefics3,
    "SmolVLMForConditionalGeneration": _idefics3,
    "Qwen2VLForConditionalGeneration": qwen2_vl,
    "Qwen2_5_VLForConditionalGeneration": qwen2_vl,
    "Exaone4_5_ForConditionalGeneration": qwen2_vl,
    "Qwen3VLForConditionalGeneration": qwen2_vl,
    "Qwen3VLMoeForConditionalGeneration": qwen2_vl,
    "Qwen3_5ForConditionalGeneration": qwen2_vl,
    "Qwen3_5MoeForConditionalGeneration": qwen2_vl,
    **dict.fromkeys((*OMNI, *OMNI_2_5), _qwen_omni),
    "Glm4vForConditionalGeneration": qwen2_vl,
    "Glm4vMoeForConditionalGeneration": qwen2_vl,
    "Glm46VForConditionalGeneration": qwen2_vl,
    "GlmOcrForConditionalGeneration": qwen2_vl,
    "AyaVisionForConditionalGeneration": aya_vision,
    "Cohere2VisionForConditionalGeneration": command_vision,
    "DeepseekOcr2ForConditionalGeneration": deepseek_ocr2,
    "DeepseekOCR2ForCausalLM": deepseek_ocr2,
    "DeepseekOCRForCausalLM": deepseek_ocr,
    "DeepseekVLForConditionalGeneration": deepseek_vl,
    "DeepseekVLHybridForConditionalGeneration": deepseek_vl_hybrid,
    "JanusForConditionalGeneration": janus,
    "MultiModalityCausalLM": multi_modality,
    "Granite4VisionForConditionalGeneration": granite4_vision,
    "InternVLForConditionalGeneration": internvl,
    "QianfanOCRForConditionalGeneration": qianfan_ocr,
    "LlavaNextForConditionalGeneration": llava_next,
    "PaddleOCRVLForConditionalGeneration": paddleocr_vl,
    "Kimi_K25ForConditionalGeneration": kimi_k25,
    "KimiK25ForConditionalGeneration": kimi_k25,
    "KimiVLForConditionalGeneration": kimi_vl,
    "Lfm2VlForConditionalGeneration": lfm2_vl,
    "Llama4ForConditionalGeneration": llama4,
    "MiniCPMV": minicpmv,
    "MiniCPMO": minicpmv,
    "MiniCPMV4_6ForConditionalGeneration": minicpmv4_6,
    "MiniMaxM3SparseForConditionalGeneration": minimax_m3,
    "MiniMaxM3VLForConditionalGeneration": minimax_m3,
    "Mistral3ForConditionalGeneration": pixtral,
    "Molmo2ForConditionalGeneration": molmo2,
    "Phi3VForCausalLM": phi3_pictures,
    "Phi4MultimodalForCausalLM": phi4_pictures,
    "Phi4MMForCausalLM": phi4_pictures,
    "Step3p7ForConditionalGeneration": step3p7,
    "LightOnOcrForConditionalGeneration": lighton_ocr,
    "LightOnOCRForConditionalGeneration": lighton_ocr,
    "LlavaOnevisionForConditionalGeneration": onevision,
    "CLIPModel": in_shared_space,
    "SiglipModel": in_shared_space,
}
"""config.json's architecture -> who reads how its pictures are prepared."""
