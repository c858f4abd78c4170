"""What a model's files say about the media it takes: all that changes a pixel, a frame of sound or
a token.

Filled by `penstock.prepare` from preprocessor_config.json, processor_config.json and config.json;
`penstock.media` does what it says. `penstock.forms` and `sound_facts` have the forms of
preparation; `tower_spec` and `audio_spec` say what becomes of the pixels and frames.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.forms.registry import ImagePreparation, VideoPreparation
from penstock.model.sound_facts import SoundPreparation, Spectrogram
from penstock.model.transcription_facts import Alignment, SpokenChat, TranscriptionFacts

MediaKind = Literal["image", "audio", "video"]


Preparation = ImagePreparation | VideoPreparation | SoundPreparation
AnyPreparation = Preparation | Spectrogram


class KindFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's files say about one kind of media.

    placeholder: what stands for an item in a filled chat template; "": items have no place in a
    text.  token: the special token that is repeated in its place, once an embedding.  before,
    behind: text before and after these, in the prompt (a tile's own is the preparation's).
    """

    preparation: Preparation
    placeholder: str
    token: str
    token_id: int
    before: str = ""
    behind: str = ""
    numbered: tuple[str, str] = ("", "")
    """Text around an item's number among those of its kind in a prompt, from 0 on, which stands
    before it; two empty texts: items aren't numbered."""
    counted: tuple[str, str] = ("", "")
    """Text around an item's number, from 1 on, which may stand in a prompt's text instead of the
    placeholder; two empty texts: only that may."""
    joined: bool = False
    """Whether a prompt's items see one another, whatever text stands between them (Molmo 2)."""
    shown_id: int | None = None
    """The token that the model gets for each embedding, if it isn't token_id: InternVL's and GLM's
    videos have the same as pictures."""

    @classmethod
    def marked(
        cls,
        preparation: Preparation,
        token: tuple[str, int],
        placeholder: str | None = None,
        **rest: Any,
    ) -> KindFacts:
        """Returns the facts of items for which a token stands, by text and id. placeholder: None:
        the token stands in a filled template, too."""
        text, token_id = token
        mark = text if placeholder is None else placeholder
        return cls(preparation=preparation, placeholder=mark, token=text, token_id=token_id, **rest)


class MediaFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's files say about all media that it takes; the manifest has it."""

    kinds: dict[MediaKind, KindFacts]
    """Facts of each kind that the model takes."""
    transcription: TranscriptionFacts | SpokenChat | None = None
    """Facts of a model that turns speech into text; None for all others."""
    alone: bool = False
    """Whether an item is an input by itself, without any text, of a model that makes vectors."""

    @property
    def in_front(self) -> MediaKind | None:
        """The kind of media of which an encoder-decoder model has one item before each prompt;
        None: items stand within prompts, or by themselves."""
        if self.alone:
            return None
        return next((kind for kind, own in self.kinds.items() if not own.placeholder), None)


def alignment_of(media: MediaFacts | None) -> Alignment | None:
    """How times of words are known; None: they aren't."""
    heard = None if media is None else media.transcription
    return None if heard is None or isinstance(heard, SpokenChat) else heard.alignment


def alignment_heads(media: MediaFacts | None) -> tuple[tuple[int, int], ...]:
    """(layer, head) of those that follow the sound."""
    found = alignment_of(media)
    return () if found is None else found.heads
