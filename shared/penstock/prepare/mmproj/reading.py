"""Reads an mmproj file beside its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.vision.deepseek_vl import SMALLEST_SIDE
from penstock.families.vision.image_processor import CLIP_MEAN, CLIP_STD, HALF
from penstock.families.vision.internvl import BEGIN, END, PROJECTOR_NORM
from penstock.families.vision.janus import BEGIN as JANUS_BEGIN
from penstock.families.vision.janus import END as JANUS_END
from penstock.families.vision.janus import PLACEHOLDER as JANUS_TOKEN
from penstock.families.vision.lfm2_vl import BEGIN as NAFLEX_BEGIN
from penstock.families.vision.lfm2_vl import END as NAFLEX_END
from penstock.families.vision.lfm2_vl import MAX_FACTOR
from penstock.families.vision.lfm2_vl import PROJECTOR_NORM as NAFLEX_NORM
from penstock.families.vision.pictures import MAX_TILES
from penstock.families.vision.reading import MAX_PIXELS, bounded
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.forms.canvas import CanvasImages
from penstock.forms.fixed import FixedImages
from penstock.forms.naflex import NaflexImages
from penstock.forms.pixels import Colour
from penstock.forms.rows import RowImages
from penstock.forms.tiled import TiledImages
from penstock.model.audio_spec import AudioSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.model.projector_spec import MLPProjector, ShuffleProjector, SquareMLPProjector
from penstock.model.tower_spec import LearnedPositions, RotaryPositions, VisionSpec
from penstock.model.transcription_facts import SpokenChat
from penstock.prepare.checkpoint import check_towers, odd_values_refused
from penstock.prepare.mmproj.deepseek_ocr import deepseek_ocr, deepseek_ocr2
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.gemma import (
    gemma3,
    gemma3n,
    gemma4,
    gemma4_unified,
    siglip_tower,
)
from penstock.prepare.mmproj.gemma_sounds import (
    gemma3n_sounds,
    gemma4_sounds,
    gemma4_unified_sounds,
)
from penstock.prepare.mmproj.glm4v import glm4v
from penstock.prepare.mmproj.kimi import kimi_k25, kimi_vl
from penstock.prepare.mmproj.llama4 import llama4
from penstock.prepare.mmproj.llava import llava
from penstock.prepare.mmproj.minicpmv import minicpmv, minicpmv4_6
from penstock.prepare.mmproj.minimax_m3 import minimax_m3
from penstock.prepare.mmproj.paddleocr_vl import paddleocr_vl
from penstock.prepare.mmproj.qwen_vl import qwen2_5_omni, qwen2_5_vl, qwen2_vl, qwen3_vl
from penstock.prepare.mmproj.sounds import (
    granite_speech,
    qwen2_5_omni_sounds,
    qwen2_audio,
    qwen3_asr,
    qwen3_omni_sounds,
    voxtral,
)
from penstock.prepare.mmproj.step3vl import step3vl
from penstock.prepare.mmproj.videos import with_videos
from penstock.prepare.transcription import asked_chat, spoken_chat

# mmproj files of Idefics 3 and SmolVLM.


def idefics3(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    image, patches = found.side()
    factor = bounded(found.keys, "projector.scale_factor", patches, 2)
    if patches % factor:
        raise found.keys.wrong("projector.scale_factor", f"a divisor of {patches}")
    vision = VisionSpec(
        tower=siglip_tower(found, fractional=True), projector=ShuffleProjector(factor=factor)
    )
    token, token_id = tokens.id_of("<image>")
    preparation = TiledImages(
        pixels=found.pixels(1, HALF, HALF),
        longest_edge=bounded(found.keys, "preproc_image_size", MAX_PIXELS, 4 * image),
        tile=image,
        rows=(patches // factor) ** 2,
    )
    tokens.id_of(preparation.around)
    return vision, of_pictures(preparation, token, token, token_id)


# mmproj files of Janus-Pro.


def janus_pro(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    image, side = found.side()
    tower = found.tower(
        "layer",
        activation=found.activation("gelu"),
        patch_bias=True,
        qkv_bias=found.has("v.blk.0.attn_q.bias"),
        positions=LearnedPositions(side=side),
        last_norm=True,
    )
    vision = VisionSpec(tower=tower, projector=MLPProjector(bias=True), image_size=image)
    preparation = FixedImages(
        pixels=found.pixels(3, HALF, HALF),
        height=image,
        width=image,
        rows=side * side,
        fitted=SMALLEST_SIDE,
    )
    token, token_id = tokens.id_of(JANUS_TOKEN, "<image>")
    for text in (JANUS_BEGIN, JANUS_END):
        tokens.id_of(text)
    kinds = of_pictures(preparation, token, token, token_id, before=JANUS_BEGIN, behind=JANUS_END)
    return vision, kinds


# mmproj files of Pixtral, Mistral Small 3 and LightOnOCR.


def pixtral(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    return _in_rows(found, tokens, "[IMG]")


def lighton_ocr(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    return _in_rows(found, tokens, "<|image_pad|>", row_end="", end="")


def _in_rows(
    found: MmprojFile, tokens: MmprojTokens, mark: str, **around: str
) -> tuple[VisionSpec, Kinds]:
    """mark: the token of pictures. around: RowImages' texts."""
    image, patches = found.side()
    merge = bounded(found.keys, "spatial_merge_size", patches, 1)
    tower = found.tower(
        "rms",
        activation=found.activation("gelu"),
        gated=True,
        qkv_bias=False,
        bias=False,
        first_norm=True,
        positions=RotaryPositions(alternating=True, adjacent=True),
    )
    if tower.head_dim % 4:
        raise found.keys.wrong("attention.head_count", "heads of a multiple of 4 numbers")
    bias = found.has("mm.1.bias")
    projector: MLPProjector | SquareMLPProjector = MLPProjector(bias=bias)
    if found.has("mm.patch_merger.weight"):
        norm = NormSpec(kind="rms", eps=found.text.norm.eps)
        projector = SquareMLPProjector(factor=merge, norm=norm, bias=bias, merged=True)
    token, token_id = tokens.id_of(mark)
    preparation = RowImages(
        pixels=found.pixels(3, CLIP_MEAN, CLIP_STD),
        longest_edge=image,
        patch=tower.patch * merge,
        **around,
    )
    for text in filter(None, (preparation.row_end, preparation.end)):
        tokens.id_of(text)
    vision = VisionSpec(tower=tower, projector=projector)
    return vision, of_pictures(preparation, token, token, token_id)


# mmproj files of LFM2-VL.


def lfm2_vl(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """image_size is that of the table of positions, whatever pictures have."""
    factor = bounded(found.keys, "projector.scale_factor", MAX_FACTOR, 2)
    inner, _ = found.shape("mm.1.weight", 2)
    tower = found.tower(
        "layer",
        activation=found.activation("gelu_tanh"),
        patch_bias=True,
        last_norm=True,
        positions=LearnedPositions(side=found.side()[1], stretched=True),
    )
    projector = SquareMLPProjector(
        factor=factor,
        norm=NAFLEX_NORM if found.has("mm.input_norm.weight") else None,
        inner=inner,
        bias=found.has("mm.1.bias"),
    )
    token, token_id = tokens.id_of("<image>")
    preparation = NaflexImages(
        pixels=found.pixels(2, HALF, HALF),
        patch=tower.patch,
        merge=factor,
        min_rows=64,
        max_rows=256,
        tile=32 * tower.patch,
    )
    if preparation.tile % preparation.square:
        raise found.keys.wrong("projector.scale_factor", "a divisor of 32")
    for text in (NAFLEX_BEGIN, NAFLEX_END, "<|img_thumbnail|>", "<|img_row_1_col_1|>"):
        tokens.id_of(text)
    vision = VisionSpec(tower=tower, projector=projector)
    kinds = of_pictures(preparation, token, token, token_id, before=NAFLEX_BEGIN, behind=NAFLEX_END)
    return vision, kinds


# mmproj files of InternVL 3.

MEAN: Colour = (0.485, 0.456, 0.406)
STD: Colour = (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's pictures, as the releases have them."""
TOKEN = "<IMG_CONTEXT>"


def internvl(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """The larger towers have other norms, which have no biases."""
    image, side = found.side()
    factor = bounded(found.keys, "projector.scale_factor", side, 2)
    if side % factor:
        raise found.keys.wrong("projector.scale_factor", f"a divisor of {side}")
    tower = found.tower(
        "layer" if found.has("v.blk.0.ln1.bias") else "rms",
        activation=found.activation("gelu"),
        patch_bias=found.has("v.patch_embd.bias"),
        qkv_bias=found.has("v.blk.0.attn_q.bias"),
        query_norms=found.has("v.blk.0.attn_q_norm.weight"),
        layer_scale=True,
        positions=LearnedPositions(side=side),
        class_token=True,
        last_norm=found.has("v.post_ln.weight"),
    )
    vision = VisionSpec(
        tower=tower,
        projector=SquareMLPProjector(factor=factor, norm=PROJECTOR_NORM),
        image_size=image,
    )
    least = bounded(found.keys, "preproc_min_tiles", MAX_TILES, 1)
    most = bounded(found.keys, "preproc_max_tiles", MAX_TILES, 12)
    if least > most:
        raise found.keys.wrong("preproc_min_tiles", f"at most {most}")
    preparation = CanvasImages(
        pixels=found.pixels(3, MEAN, STD),
        tile=image,
        rows=(side // factor) ** 2,
        least=least,
        most=most,
    )
    token, token_id = tokens.id_of(TOKEN)
    for text in (BEGIN, END):
        tokens.id_of(text)
    kinds = of_pictures(preparation, token, token, token_id, before=BEGIN, behind=END)
    return vision, with_videos(kinds, tokens)


class MmprojKind(NamedTuple):
    """known_as: its models.  decoders: the families of theirs; empty: any.  read: makes of the file
    what the model sees or hears with, and how media are prepared.  hears: whether sounds are
    meant.  sized: whether projection_dim is the size of its rows.  counted: whether positions are
    one number, whatever the decoder's file says of sections.  ears: the projector of what the model
    hears with besides, if the file holds that; "": no such file does.  transcribes: says how the
    model is asked for transcripts; None: it isn't."""

    known_as: str
    decoders: tuple[str, ...]
    read: Callable[[MmprojFile, MmprojTokens], tuple[VisionSpec | AudioSpec, Kinds]]
    hears: bool = False
    sized: bool = True
    counted: bool = False
    ears: str = ""
    transcribes: Callable[[KindFacts, MmprojTokens], SpokenChat | None] | None = None


KINDS: dict[str, MmprojKind] = {
    "mlp": MmprojKind("LLaVA or LLaVA-NeXT", (), llava, sized=False),
    "gemma3": MmprojKind("Gemma 3", ("gemma3",), gemma3),
    "gemma3nv": MmprojKind("Gemma 3n", ("gemma3n",), gemma3n, ears="gemma3na"),
    "gemma4v": MmprojKind("Gemma 4", ("gemma4",), gemma4, ears="gemma4a"),
    "gemma4uv": MmprojKind("Gemma 4 12B", ("gemma4",), gemma4_unified, ears="gemma4ua"),
    "janus_pro": MmprojKind("Janus-Pro", ("llama",), janus_pro),
    "idefics3": MmprojKind("Idefics 3 or SmolVLM", ("llama",), idefics3),
    "pixtral": MmprojKind("Pixtral or Mistral Small 3", ("llama", "mistral"), pixtral),
    "lfm2": MmprojKind("LFM2-VL", ("lfm2", "lfm2_moe"), lfm2_vl),
    "lightonocr": MmprojKind("LightOnOCR", ("qwen3",), lighton_ocr),
    "resampler": MmprojKind(
        "MiniCPM-V up to 4.5", ("qwen2", "qwen3", "llama", "minicpm"), minicpmv, sized=False
    ),
    "minicpmv4_6": MmprojKind("MiniCPM-V 4.6", ("qwen3_5",), minicpmv4_6, counted=True),
    "deepseekocr": MmprojKind("DeepSeek-OCR", ("dots1",), deepseek_ocr),
    "deepseekocr2": MmprojKind("DeepSeek-OCR 2", ("dots1",), deepseek_ocr2),
    "qwen2vl_merger": MmprojKind("Qwen2-VL", ("qwen2",), qwen2_vl),
    "qwen2.5vl_merger": MmprojKind("Qwen2.5-VL", ("qwen2",), qwen2_5_vl),
    "qwen2.5o": MmprojKind("Qwen2.5-Omni", ("qwen2",), qwen2_5_omni, ears="qwen2.5o"),
    "qwen3vl_merger": MmprojKind(
        "Qwen3-VL, Qwen3.5 or Qwen3-Omni",
        ("qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe"),
        qwen3_vl,
        ears="qwen3a",
    ),
    "glm4v": MmprojKind("GLM-4.1V, 4.5V, 4.6V or GLM-OCR", ("glm4", "glm4_moe"), glm4v),
    "llama4": MmprojKind("Llama 4", ("llama4",), llama4),
    "kimik25": MmprojKind("Kimi K2.5 or K2.6", ("deepseek_v3",), kimi_k25),
    "kimivl": MmprojKind("Kimi-VL", ("deepseek_v3",), kimi_vl),
    "paddleocr": MmprojKind("PaddleOCR-VL", ("qwen2",), paddleocr_vl),
    "step3vl": MmprojKind("Step3-VL or Step 3.7", ("step3p5", "qwen3"), step3vl),
    "minimax_m3": MmprojKind("MiniMax M3", ("minimax_m3",), minimax_m3),
    "internvl": MmprojKind("InternVL 3", ("qwen2", "qwen3", "qwen3_moe", "llama"), internvl),
    "qwen2a": MmprojKind("Qwen2-Audio", ("qwen2",), qwen2_audio, hears=True),
    "voxtral": MmprojKind("Voxtral", ("llama",), voxtral, hears=True),
    "qwen3a": MmprojKind(
        "Qwen3-ASR",
        ("qwen3",),
        qwen3_asr,
        hears=True,
        counted=True,
        transcribes=lambda sound, tokens: spoken_chat(tokens.tokenizer, sound),
    ),
    "granite_speech": MmprojKind(
        "Granite Speech",
        ("granite",),
        granite_speech,
        hears=True,
        transcribes=lambda sound, _tokens: asked_chat(sound),
    ),
}
"""Kinds of mmproj files by clip.projector_type."""
EARS: dict[str, Callable[[MmprojFile, MmprojTokens], tuple[AudioSpec, Kinds]]] = {
    "gemma3na": gemma3n_sounds,
    "gemma4a": gemma4_sounds,
    "gemma4ua": gemma4_unified_sounds,
    "qwen3a": qwen3_omni_sounds,
    "qwen2.5o": qwen2_5_omni_sounds,
}
"""What reads the tower for sounds, by clip.audio.projector_type, or clip.projector_type where that
is of both towers."""


def read_mmproj(
    path: Path, text: ModelConfig, tokenizer_json: bytes, template: str = ""
) -> tuple[ModelConfig, MediaFacts]:
    """The decoder with what it sees or hears with, and how media are prepared for it. path: of the
    file beside the decoder `text`.  template: for chats.  Raises ModelNotFound, and
    UnsupportedModel for a file that is broken, of a kind that isn't served, or another model's."""
    file, where = GGUFFile(path), str(path)
    stated = Fields(file.metadata, where)
    if stated.text("general.architecture", "") != "clip":
        raise UnsupportedModel(f"{where} is no mmproj file: its general.architecture isn't clip")
    kind = _kind(stated, where)
    _check_decoder(kind, text, where)
    if kind.counted:
        plain = {"sections": (), "interleaved": False}
        ropes = tuple(msgspec.structs.replace(rope, **plain) for rope in text.ropes)
        text = msgspec.structs.replace(text, ropes=ropes)
    part = "clip.audio" if kind.hears else "clip.vision"
    keys = _keys(file, part)
    if kind.sized and keys.integer("projection_dim", text.hidden_size) != text.hidden_size:
        raise UnsupportedModel(
            f"{where} makes rows of {keys.integer('projection_dim')} numbers; its model's hidden "
            f"size is {text.hidden_size}"
        )
    tokens = MmprojTokens(tokenizer_json, where, template)
    with odd_values_refused(where):
        found, kinds = kind.read(MmprojFile(file, keys, text), tokens)
        audio = None
        if kind.ears and stated.flag("clip.has_audio_encoder", False):
            own = MmprojFile(file, _keys(file, "clip.audio"), text)
            audio, heard = EARS[kind.ears](own, tokens)
            kinds |= heard
    parts = {"audio": found} if kind.hears else {"vision": found, "audio": audio}
    config = msgspec.structs.replace(text, **parts)
    check_towers(config, where)
    chat = None if kind.transcribes is None else kind.transcribes(kinds["audio"], tokens)
    return config, MediaFacts(kinds=kinds, transcription=chat)


def _kind(stated: Fields, where: str) -> MmprojKind:
    sees, hears = (stated.flag(f"clip.has_{each}_encoder", False) for each in ("vision", "audio"))
    if not sees and not hears:
        raise UnsupportedModel(
            f"{where} holds nothing to see or hear with (clip.has_vision_encoder, "
            "clip.has_audio_encoder)"
        )
    own = "clip.vision.projector_type" if sees else "clip.audio.projector_type"
    name = stated.text("clip.projector_type", stated.text(own, "mlp"))
    found = KINDS.get(name)
    both = sees and hears
    heard = stated.text("clip.audio.projector_type", name if name in EARS else "")
    if both and found is not None and found.ears and heard == found.ears:
        return found
    if both:
        raise UnsupportedModel(
            f"{where} holds both a tower that sees ({name[:80]!r}) and one that hears "
            f"({heard[:80]!r}), which is not served"
        )
    if found is None or found.hears != hears:
        raise UnsupportedModel(
            f"{where}: the projector {name[:80]!r} is not served; {', '.join(KINDS)} are"
        )
    return found


def _check_decoder(kind: MmprojKind, text: ModelConfig, where: str) -> None:
    if kind.decoders and text.architecture not in kind.decoders:
        raise UnsupportedModel(
            f"{where} belongs to {kind.known_as}, whose decoder is of the family "
            f"{' or '.join(kind.decoders)}, and not {text.architecture}"
        )


def _keys(file: GGUFFile, part: str) -> Fields:
    """Keys of a part, without its name in front."""
    begin = f"{part}."
    values = {
        key.removeprefix(begin): value
        for key, value in file.metadata.items()
        if key.startswith(begin)
    }
    return Fields(values, f"{file.path}, {part}")
