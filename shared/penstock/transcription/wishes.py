"""What a caller wants of a transcript, checked against what the model can do."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import InvalidRequest
from penstock.model.transcription_facts import SpokenChat, TranscriptionFacts
from penstock.request.sampling_params import SamplingParams
from penstock.text.tokenizer import Tokenizer
from penstock.transcription.languages import code_of, name_of

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures that are tried one after another until the output is believed."""
MAX_PROMPT = 16_384
"""Characters of a prompt; its last tokens count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """language: a code or an English name; None: it is detected.  prompt: text that stands before
    each window as if it had been said before.  temperature: 0 begins there, and retries at higher
    ones where the output is implausible.  seed: of what is drawn; None: above temperature 0 another
    one each time, at 0 one that follows from the recording.  pauses: whether a long recording is
    cut at quiet places; else each window begins where the transcript of the one before ended.
    """

    language: str | None = None
    translate: bool = False
    prompt: str = ""
    temperature: float = 0.0
    fallback: bool = True
    """Whether higher temperatures are tried at all."""
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """Most tokens of each window or piece; None: as many as the model writes."""
    seed: int | None = None
    pauses: bool = False
    silence: bool = False
    """Whether each segment says how probable silence is."""
    segments: bool = True
    """Whether verbose_json has the segments."""
    words: bool = False
    """Whether each segment has its words, and when they were said."""

    @property
    def temperatures(self) -> tuple[float, ...]:
        again = self.fallback and self.temperature == 0.0
        return TEMPERATURES if again else (self.temperature,)

    def params(
        self, temperature: float, max_tokens: int, *, own_seed: int | None = None
    ) -> SamplingParams:
        """Parameters of one attempt. own_seed: the recording's, for who asked for the likeliest
        tokens and for no seed: the same text each time, whatever has to be tried.  Raises
        InvalidRequest."""
        seed = own_seed if self.seed is None and self.temperature == 0.0 else self.seed
        return SamplingParams(
            temperature=temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=seed,
            max_tokens=max_tokens if self.max_tokens is None else min(self.max_tokens, max_tokens),
            logprobs=0,
            skip_special_tokens=False,
        )


AnyFacts = TranscriptionFacts | SpokenChat


def language_of(wishes: Wishes, facts: AnyFacts) -> str | None:
    """The code that was asked for; None: it is to be detected.  Raises InvalidRequest for one that
    the model doesn't know, and for a task that it doesn't."""
    if wishes.translate and not _translates(facts):
        why = "it writes what it hears" if facts.languages else "it knows one language"
        raise InvalidRequest(f"this model doesn't translate: {why}", code="unsupported_value")
    if wishes.language is None:
        return None if facts.languages else "en"
    code = code_of(wishes.language)
    if isinstance(facts, SpokenChat):
        named = {name.lower(): each for each, name in facts.languages.items()}
        code = named.get(code, code)
    known = facts.languages or {"en": 0}
    if code not in known:
        names = ", ".join(f"{each} ({name_of(each)})" for each in sorted(known))
        raise InvalidRequest(
            f"language is {wishes.language[:40]!r}, which this model doesn't know; allowed: "
            f"{names}",
            param="language",
            code="unsupported_value",
        )
    return code


def _translates(facts: AnyFacts) -> bool:
    if isinstance(facts, SpokenChat):
        return bool(facts.translating)
    return facts.translate is not None


def context_of(wishes: Wishes, facts: TranscriptionFacts, tokenizer: Tokenizer) -> list[int]:
    """Token ids of the prompt, as they stand before <|startoftranscript|>: the last ones, of which
    half of the decoder's context has room. Raises InvalidRequest."""
    text = wishes.prompt.strip()
    if not text:
        return []
    if facts.previous is None:
        raise _no_prompt()
    _check_length(text)
    ids = tokenizer.encode(f" {text}", add_special=False, parse_special=False)
    return [facts.previous, *ids[-(facts.max_tokens // 2 - 1) :]]


def _no_prompt() -> InvalidRequest:
    return InvalidRequest("prompt: this model takes none", param="prompt", code="unsupported_value")


def _check_length(text: str) -> None:
    if len(text) > MAX_PROMPT:
        raise InvalidRequest(
            f"prompt has {len(text)} characters; at most {MAX_PROMPT} are allowed", param="prompt"
        )


def told_tokens(wishes: Wishes, tokenizer: Tokenizer) -> list[int]:
    """Token ids of the prompt where it is a text for the system. Raises InvalidRequest."""
    text = wishes.prompt.strip()
    _check_length(text)
    return tokenizer.encode(text, add_special=False, parse_special=False)


def task_tokens(language: str, wishes: Wishes, facts: TranscriptionFacts) -> list[int]:
    """What a decoder is given: start, language and task."""
    ids = [facts.start]
    if facts.languages:
        ids.append(facts.languages[language])
    task = facts.translate if wishes.translate else facts.transcribe
    if task is not None:
        ids.append(task)
    return ids


def check(wishes: Wishes, facts: AnyFacts, tokenizer: Tokenizer) -> None:
    """Raises InvalidRequest for what the model can't fulfil."""
    language_of(wishes, facts)
    if wishes.words and (isinstance(facts, SpokenChat) or facts.alignment is None):
        raise InvalidRequest(
            "this model's files don't say which of its heads follow the sound, so it can't say "
            "when words are spoken",
            param="timestamp_granularities",
            code="unsupported_value",
        )
    if isinstance(facts, SpokenChat):
        if facts.asking and wishes.prompt.strip():
            raise _no_prompt()
        told_tokens(wishes, tokenizer)
    else:
        context_of(wishes, facts, tokenizer)
    wishes.params(wishes.temperature, facts.max_tokens)
