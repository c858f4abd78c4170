"""Base of the kinds of mmproj files: a kind is served once a module of this package defines it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.families.tower_names import TowerNames
from penstock.model.audio_spec import AudioSpec
from penstock.model.media_facts import KindFacts
from penstock.model.tower_spec import VisionSpec
from penstock.model.transcription_facts import SpokenChat
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens


@dataclass(frozen=True)
class MmprojKind:
    """A kind of files, and how they say what VisionSpec or AudioSpec says."""

    name: str
    """clip.projector_type."""
    known_as: str
    """Its models."""
    decoders: tuple[str, ...]
    """The families of their decoders; empty: any."""
    read: Callable[[MmprojFile, MmprojTokens], tuple[VisionSpec | AudioSpec, Kinds]]
    """Returns the file's vision or audio encoder, and how media are prepared."""
    names: TowerNames
    """Names of its tensors."""
    hears: bool = False
    """Whether sounds are meant."""
    sized: bool = True
    """Whether projection_dim is the size of its rows."""
    counted: bool = False
    """Whether positions are one number, whatever the decoder's file says of sections."""
    ears: str = ""
    """The projector type of the audio tower that the file may also hold; "": no such file does."""
    transcribes: Callable[[KindFacts, MmprojTokens], SpokenChat | None] | None = None
    """Says how the model is asked for transcripts; None: it isn't."""


@dataclass(frozen=True)
class MmprojEars:
    """The audio tower in a file that is read as another kind's."""

    name: str
    """clip.audio.projector_type, or clip.projector_type where that is of both towers."""
    read: Callable[[MmprojFile, MmprojTokens], tuple[AudioSpec, Kinds]]
    names: TowerNames
