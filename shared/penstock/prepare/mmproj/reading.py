"""Reads an mmproj file together with its model."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.config.bundled import MMPROJ_KINDS, defining
from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields, keys_below
from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock.model.media_facts import MediaFacts
from penstock.prepare.checkpoint import check_towers, odd_values_refused
from penstock.prepare.mmproj.file import MmprojFile, MmprojTokens
from penstock.prepare.mmproj.kinds import MmprojEars, MmprojKind

_Kind = TypeVar("_Kind", MmprojKind, MmprojEars)


def _defined(kind: type[_Kind]) -> dict[str, _Kind]:
    """Returns all that the modules of this package and of the bundled ones define, by name."""
    found = [
        each
        for module in defining("penstock.prepare.mmproj", MMPROJ_KINDS, but=__name__)
        for each in vars(module).values()
        if isinstance(each, kind)
    ]
    return {each.name: each for each in sorted(found, key=lambda each: each.name)}


KINDS = _defined(MmprojKind)
"""Kinds of mmproj files by clip.projector_type."""
EARS = _defined(MmprojEars)


def read_mmproj(
    path: Path, text: ModelConfig, tokenizer_json: bytes, template: str = ""
) -> tuple[ModelConfig, MediaFacts]:
    """Returns the decoder with its vision or audio tower, and how media are prepared for it. path:
    of the mmproj file of the decoder `text`.  template: for chats.  Raises ModelNotFound, and
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
    keys = keys_below(file.metadata, part, file.path)
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
            own = MmprojFile(file, keys_below(file.metadata, "clip.audio", file.path), text)
            audio, heard = EARS[kind.ears].read(own, tokens)
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
