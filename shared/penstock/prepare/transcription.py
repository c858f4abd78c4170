"""What a hub folder says about transcribing: generation_config.json, and where that is silent the
tokenizer's own special tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.small_file import read_json
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.model.sound_facts import BlockMel, LogMel, PairedMel
from penstock.model.transcription_facts import Alignment, SpokenChat, TranscriptionFacts
from penstock.prepare.inputs import GENERATION_CONFIG, MAX_JSON_BYTES
from penstock.text.tokenizer import Tokenizer

CLASS = "WhisperForConditionalGeneration"
CHAT_CLASS = "Qwen3ASRForConditionalGeneration"
ASKED_CLASS = "GraniteSpeechForConditionalGeneration"
ASKING = "can you transcribe the speech into a written format?"
TRANSLATING = "can you translate the speech to English?"
"""What Granite Speech is asked after a sound."""
ASKED_LANGUAGES = ("de", "en", "es", "fr", "ja", "pt")
"""Languages that Granite Speech knows; its first releases don't know Japanese."""
MARK = "<asr_text>"
"""Parts the language from the text in an answer."""
MAX_ANSWER = 1024
"""Most tokens of the text of a window."""
NAMES = {
    "ar": "Arabic",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fa": "Persian",
    "fi": "Finnish",
    "fil": "Filipino",
    "fr": "French",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "mk": "Macedonian",
    "ms": "Malay",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "vi": "Vietnamese",
    "yue": "Cantonese",
    "zh": "Chinese",
}
"""Languages that Qwen3-ASR knows, by code."""
MAX_FILTER = 99
"""Rows of a median filter."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


def read_transcription(
    path: Path, config: Fields, tokenizer_json: bytes, media: MediaFacts
) -> TranscriptionFacts | SpokenChat | None:
    """None for a model of another kind, and for one that lacks the tokens: Whisper's for times,
    Qwen3-ASR's mark.

    config: config.json.  media: what is known of the model's sounds.  Raises UnsupportedModel for
    tokens that aren't in the vocabulary.
    """
    sound = media.kinds.get("audio")
    if sound is None:
        return None
    names, mel = config.listed("architectures", str), sound.preparation
    tokenizer = Tokenizer.from_bytes(tokenizer_json, add_bos=False, bos_token_id=None)
    if CHAT_CLASS in names:
        known = config.listed("support_languages", str) if "support_languages" in config else None
        return spoken_chat(tokenizer, sound, known)
    if ASKED_CLASS in names:
        return asked_chat(sound)
    if CLASS not in names or not isinstance(mel, LogMel):
        return None
    vocab = config.integer("vocab_size")
    tokens = _Ids(_stated(path), tokenizer, vocab, str(path / GENERATION_CONFIG))
    start = tokens.one("decoder_start_token_id", "<|startoftranscript|>")
    end = tokens.one("eos_token_id", "<|endoftext|>")
    no_timestamps = tokens.one("no_timestamps_token_id", "<|notimestamps|>")
    if start is None or end is None or no_timestamps is None or no_timestamps + 1 >= vocab:
        return None
    if end > no_timestamps:  # It would be a time itself.
        return None
    tasks = tokens.table("task_to_id")
    languages = tokens.languages()
    return TranscriptionFacts(
        start=start,
        end=end,
        no_timestamps=no_timestamps,
        first_timestamp=no_timestamps + 1,
        previous=tokens.one("prev_sot_token_id", "<|startofprev|>"),
        no_speech=tokens.one("", "<|nospeech|>", "<|nocaptions|>"),
        transcribe=tasks.get("transcribe", tokens.one("", "<|transcribe|>")) if languages else None,
        translate=tasks.get("translate", tokens.one("", "<|translate|>")) if languages else None,
        languages=languages,
        suppressed=tokens.listed("suppress_tokens"),
        suppressed_first=tokens.listed("begin_suppress_tokens"),
        max_initial=tokens.count("max_initial_timestamp_index"),
        max_tokens=config.integer("max_target_positions"),
        window_frames=mel.chunk_frames,
        frames_per_second=mel.sampling_rate // mel.hop,
        timestamp_frames=mel.chunk_frames // config.integer("max_source_positions"),
        alignment=_alignment(tokens, config),
    )


def asked_chat(sound: KindFacts) -> SpokenChat | None:
    """Returns the facts of Granite Speech, which is asked for a transcript; None for other
    models."""
    mel = sound.preparation
    if not isinstance(mel, PairedMel):
        return None
    rate = mel.sampling_rate // mel.hop
    return SpokenChat(
        asking=ASKING,
        translating=TRANSLATING,
        languages={code: NAMES[code] for code in ASKED_LANGUAGES},
        max_tokens=MAX_ANSWER,
        window_frames=mel.seconds * rate // 2 * 2,
        frames_per_second=rate,
    )


def spoken_chat(
    tokenizer: Tokenizer, sound: KindFacts, known: list[str] | None = None
) -> SpokenChat | None:
    """The prompt is what Qwen3-ASR's chat template makes of a sound, with a text for the system.

    known: names of the languages; None: all that releases have.  Returns None for a vocabulary
    without the mark, or a model with another audio tower."""
    mel = sound.preparation
    by_text = {each.content: token for token, each in tokenizer.added_tokens.items()}
    if MARK not in by_text or not isinstance(mel, BlockMel):
        return None
    begin, end = ("", "") if sound.before else ("<|audio_start|>", "<|audio_end|>")
    return SpokenChat(
        begin="<|im_start|>system\n",
        before=f"<|im_end|>\n<|im_start|>user\n{begin}",
        behind=f"{end}<|im_end|>\n<|im_start|>assistant\n",
        naming="language {}",
        mark=by_text[MARK],
        languages={code: name for code, name in NAMES.items() if known is None or name in known},
        max_tokens=MAX_ANSWER,
        window_frames=mel.seconds * mel.sampling_rate // mel.hop,
        frames_per_second=mel.sampling_rate // mel.hop,
    )


def _alignment(stated: _Ids, config: Fields) -> Alignment:
    """The heads that generation_config.json names; else, as Whisper's authors have it, all heads of
    the decoder's latter half. Raises UnsupportedModel for heads that it hasn't got."""
    layers, heads = config.integer("decoder_layers"), config.integer("decoder_attention_heads")
    width = config.integer("median_filter_width", 7)
    if not (1 <= width <= MAX_FILTER and width % 2):
        raise UnsupportedModel(
            f"{config.where}: median_filter_width is {width}; odd numbers up to {MAX_FILTER} are "
            "allowed"
        )
    found = stated.heads("alignment_heads", layers, heads)
    latter = tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))
    return Alignment(heads=found or latter, filter_width=width)


def _stated(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path / GENERATION_CONFIG, MAX_JSON_BYTES)
    except FileNotFoundError:
        return {}
    if not isinstance(values, dict):
        raise UnsupportedModel(f"{path / GENERATION_CONFIG} is not a JSON object")
    return values


class _Ids:
    """Ids by the names of generation_config.json, and by the texts of special tokens."""

    def __init__(
        self, stated: dict[str, Any], tokenizer: Tokenizer, vocab: int, where: str
    ) -> None:
        self._stated = stated
        self._by_text = {each.content: token for token, each in tokenizer.added_tokens.items()}
        self._vocab = vocab
        self._where = where

    def one(self, key: str, *texts: str) -> int | None:
        """Token of the key, else of the first of the texts that is a token."""
        stated = self._stated.get(key)
        if isinstance(stated, list) and len(stated) == 1:
            (stated,) = stated
        if stated is not None:
            return self._checked(key, stated)
        return next((self._by_text[text] for text in texts if text in self._by_text), None)

    def listed(self, key: str) -> tuple[int, ...]:
        stated = self._stated.get(key) or []
        if not isinstance(stated, list) or len(stated) > 1024:
            raise UnsupportedModel(f"{self._where}: {key} is no list of at most 1024 token ids")
        return tuple(self._checked(key, each) for each in stated if each != -1)

    def table(self, key: str) -> dict[str, int]:
        stated = self._stated.get(key) or {}
        if not isinstance(stated, dict) or len(stated) > 1024:
            raise UnsupportedModel(f"{self._where}: {key} is no table of at most 1024 token ids")
        return {str(name): self._checked(key, each) for name, each in stated.items()}

    def languages(self) -> dict[str, int]:
        """Language tokens by code; none of a model that knows English only."""
        if self._stated.get("is_multilingual") is False:
            return {}
        table = self.table("lang_to_id")
        return {
            found[1]: token
            for text, token in table.items()
            if (found := _LANGUAGE.fullmatch(text)) is not None
        }

    def heads(self, key: str, layers: int, heads: int) -> tuple[tuple[int, int], ...]:
        """Pairs of a layer and one of its heads; none where the key is missing."""
        stated = self._stated.get(key) or []
        every = [(layer, head) for layer in range(layers) for head in range(heads)]
        listed = isinstance(stated, list) and len(stated) <= len(every)
        found = tuple(each for each in every if list(each) in stated) if listed else ()
        if not listed or len(found) != len(stated):
            raise UnsupportedModel(
                f"{self._where}: {key} is no list of pairs of a layer below {layers} and a head "
                f"below {heads}"
            )
        return found

    def count(self, key: str) -> int | None:
        stated = self._stated.get(key)
        if stated is None:
            return None
        if type(stated) is not int or stated < 0:
            raise UnsupportedModel(f"{self._where}: {key} is {stated!r}; it must be 0 or more")
        return stated

    def _checked(self, key: str, token: Any) -> int:
        if type(token) is not int or not 0 <= token < self._vocab:
            raise UnsupportedModel(
                f"{self._where}: {key} has {token!r}, which is no token id below {self._vocab}"
            )
        return token
