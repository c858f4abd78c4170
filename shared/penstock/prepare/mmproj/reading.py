"""Reads an mmproj file beside its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.model.audio_spec import AudioSpec
from penstock.model.config import ModelConfig
from penstock.model.media_facts import MediaFacts
from penstock.model.vision_spec import VisionSpec
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens
from penstock.prepare.mmproj.internvl import internvl
from penstock.prepare.mmproj.llava import llava
from penstock.prepare.mmproj.pixtral import pixtral
from penstock.prepare.mmproj.qwen_vl import qwen2_5_vl, qwen2_vl, qwen3_vl
from penstock.prepare.mmproj.siglip import gemma3, idefics3
from penstock.prepare.mmproj.sounds import qwen2_audio, voxtral
from penstock.prepare.odd_values import odd_values_refused


class MmprojKind(NamedTuple):
    """known_as: its models.  decoders: the families of theirs; empty: any.  read: makes of the file
    what the model sees or hears with, and how media are prepared.  hears: whether sounds are
    meant.  sized: whether projection_dim is the size of its rows."""

    known_as: str
    decoders: tuple[str, ...]
    read: Callable[[MmprojFile, MmprojTokens], tuple[VisionSpec | AudioSpec, Kinds]]
    hears: bool = False
    sized: bool = True


KINDS: dict[str, MmprojKind] = {
    "mlp": MmprojKind("LLaVA", (), llava, sized=False),
    "gemma3": MmprojKind("Gemma 3", ("gemma3",), gemma3),
    "idefics3": MmprojKind("Idefics 3 or SmolVLM", ("llama",), idefics3),
    "pixtral": MmprojKind("Pixtral or Mistral Small 3", ("llama",), pixtral),
    "qwen2vl_merger": MmprojKind("Qwen2-VL", ("qwen2",), qwen2_vl),
    "qwen2.5vl_merger": MmprojKind("Qwen2.5-VL", ("qwen2",), qwen2_5_vl),
    "qwen3vl_merger": MmprojKind("Qwen3-VL", ("qwen3", "qwen3_moe"), qwen3_vl),
    "internvl": MmprojKind("InternVL 3", ("qwen2", "qwen3", "qwen3_moe", "llama"), internvl),
    "qwen2a": MmprojKind("Qwen2-Audio", ("qwen2",), qwen2_audio, hears=True),
    "voxtral": MmprojKind("Voxtral", ("llama",), voxtral, hears=True),
}
"""Kinds of mmproj files by clip.projector_type."""


def read_mmproj(
    path: Path, text: ModelConfig, tokenizer_json: bytes
) -> tuple[ModelConfig, MediaFacts]:
    """The decoder with what it sees or hears with, and how media are prepared for it. path: of the
    file beside the decoder `text`. Raises ModelNotFound, and UnsupportedModel for a file that is
    broken, of a kind that isn't served, or another model's."""
    file, where = GGUFFile(path), str(path)
    stated = Fields(file.metadata, where)
    if stated.text("general.architecture", "") != "clip":
        raise UnsupportedModel(f"{where} is no mmproj file: its general.architecture isn't clip")
    kind = _kind(stated, where)
    _check_decoder(kind, text, where)
    part = "clip.audio" if kind.hears else "clip.vision"
    keys = _keys(file, part)
    if kind.sized and keys.integer("projection_dim", text.hidden_size) != text.hidden_size:
        raise UnsupportedModel(
            f"{where} makes rows of {keys.integer('projection_dim')} numbers; its model's hidden "
            f"size is {text.hidden_size}"
        )
    with odd_values_refused(where):
        found, kinds = kind.read(MmprojFile(file, keys, text), MmprojTokens(tokenizer_json, where))
    if isinstance(found, AudioSpec):
        return msgspec.structs.replace(text, audio=found), MediaFacts(kinds=kinds)
    return msgspec.structs.replace(text, vision=found), MediaFacts(kinds=kinds)


def _kind(stated: Fields, where: str) -> MmprojKind:
    sees, hears = (stated.flag(f"clip.has_{each}_encoder", False) for each in ("vision", "audio"))
    if not sees and not hears:
        raise UnsupportedModel(
            f"{where} holds nothing to see or hear with (clip.has_vision_encoder, "
            "clip.has_audio_encoder)"
        )
    if sees and hears:
        raise UnsupportedModel(
            f"{where} holds both a tower that sees and one that hears, which is not served"
        )
    own = "clip.vision.projector_type" if sees else "clip.audio.projector_type"
    name = stated.text("clip.projector_type", stated.text(own, "mlp"))
    found = KINDS.get(name)
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
