"""What a model's files say about transcribing: its tokens, and how it counts time."""

from __future__ import annotations

import msgspec


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's attention to a sound says when each token is spoken: see
    penstock_worker.alignment."""

    heads: tuple[tuple[int, int], ...]
    """(layer, head) of those that follow the sound."""
    filter_width: int = 7
    """Rows of the encoder, of which each gets the median; odd."""


class SpokenChat(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="chat"):
    """A model that transcribes by chat: it answers a message that is a sound with the sound's
    language and text (Qwen3-ASR). A prompt is `begin`, context for the sound, `before`, the sound's
    embeddings, `behind`; an answer is the language as `naming` has it, `mark`, the text.

    Or the message is a sound and a question, with which the chat template is filled, and the answer
    is the text alone (Granite Speech)."""

    begin: str = ""
    before: str = ""
    behind: str = ""
    naming: str = ""
    mark: int | None = None
    """Token id of what parts the language from the text; None: an answer is the text alone."""
    asking: str = ""
    """The question after the sound; empty: the prompt is made of the texts above."""
    translating: str = ""
    """What is asked for a text in English, whatever is spoken; empty: the model doesn't
    translate."""
    languages: dict[str, str]
    """What the model calls each language, by code, as in "en"."""
    max_tokens: int
    """Most tokens of an answer."""
    window_frames: int
    """Frames of the spectrogram that are transcribed together."""
    frames_per_second: int

    @property
    def window_seconds(self) -> float:
        return self.window_frames / self.frames_per_second


class TranscriptionFacts(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="tokens"):
    """What is known of a model that turns speech into text as Whisper does (Radford et al. 2022,
    arXiv:2212.04356). All tokens are ids."""

    start: int
    """Begins what a decoder is given: <|startoftranscript|>."""
    end: int
    """Ends a text. Ids below it are text."""
    no_timestamps: int
    first_timestamp: int
    """The timestamp of 0 s. It and all ids from there on are timestamps."""
    previous: int | None = None
    """Stands before what was said before; None: the model takes no prompt."""
    no_speech: int | None = None
    transcribe: int | None = None
    """The token that asks for transcription; None for a model that knows one language only,
    English."""
    translate: int | None = None
    languages: dict[str, int] = {}
    """Each language's token by its code, as in "en". Empty: the model knows one language only."""
    suppressed: tuple[int, ...] = ()
    """Ids that never come."""
    suppressed_first: tuple[int, ...] = ()
    """Ids that don't come first."""
    max_initial: int | None = None
    """The latest timestamp that a window's text may begin with, counted from `first_timestamp`."""
    max_tokens: int
    """Most tokens that a decoder's prompt and output have together."""
    window_frames: int
    """Frames of the spectrogram that the encoder takes."""
    frames_per_second: int
    timestamp_frames: int
    """Frames from one timestamp to the next."""
    alignment: Alignment | None = None
    """How times of words are found; None if they aren't known."""

    @property
    def window_seconds(self) -> float:
        return self.window_frames / self.frames_per_second
