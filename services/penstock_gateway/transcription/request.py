"""What a request for a transcript may contain, and how a form's fields become it."""

from __future__ import annotations

import typing
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.config.foreign_names import meant
from penstock.errors import InvalidRequest
from penstock.transcription.languages import code_of
from penstock.transcription.wishes import Wishes
from penstock_gateway.request.decoding import convert
from penstock_gateway.request.fields import Flag, Number, Text, Whole
from penstock_gateway.request.multipart import Form
from penstock_gateway.request.skipped_fields import say_field

FILE = "file"
FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
GRANULARITIES = ("segment", "word")
STREAMED_FORMATS = ("json", "text")

Recorded = Annotated[
    Any,
    Meta(
        description="A recording: WAV, FLAC, Ogg, MP3, AIFF or AU; with PyAV also M4A, WebM, "
        "MP4 and others.",
        extra_json_schema={"type": "string", "format": "binary"},
    ),
]


class SpeechFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints take. file: what its sender calls it; its bytes stay in the form."""

    # These work.
    file: Recorded
    model: Text = None
    prompt: Text = None
    response_format: Text = None
    temperature: Number = None
    stream: Flag = None
    seed: Whole = None
    top_p: Number = None
    top_k: Whole = None
    min_p: Number = None
    frequency_penalty: Number = None
    presence_penalty: Number = None
    repetition_penalty: Number = None
    max_completion_tokens: Whole = None
    """Most tokens of each piece that is transcribed."""
    to_language: Text = None
    """Only the language that the text has anyway: that is spoken, or English of a translation."""
    chunking_strategy: Text = None
    """auto: a long recording is cut at quiet places, and each piece transcribed by itself."""
    request_id: Text = None
    cache_salt: Text = None
    priority: Whole = None
    deadline_ms: Whole = None
    """Milliseconds that the whole answer may take (Penstock's own)."""

    # Without effect on the output.
    user: Text = None
    stream_include_usage: Flag = None
    """vLLM's; a stream's last event has the usage anyway."""
    stream_continuous_usage_stats: Flag = None


class TranscriptionRequest(SpeechFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of /v1/audio/transcriptions."""

    language: Text = None
    """ISO 639-1, or the language's English name; null: it is detected."""
    languages: list[str] | None = None
    """The language as a list of one."""
    keywords: list[str] | None = None
    """Words that are likely in the recording. They come before the prompt, as a part of it."""
    hotwords: Text = None
    """`keywords` in one text, as in vLLM."""
    timestamp_granularities: list[str] | None = None
    """Granularities of verbose_json: segment, word."""

    # Only where they ask for nothing.
    include: list[str] | None = None
    known_speaker_names: list[str] | None = None
    known_speaker_references: list[str] | None = None


class TranslationRequest(SpeechFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of /v1/audio/translations: into English. language: that is spoken."""

    language: Text = None


AnyRequest = TranscriptionRequest | TranslationRequest
_ALL = {field.encode_name for field in msgspec.structs.fields(TranscriptionRequest)}


def read_form(form: Form, kind: type[Any]) -> Any:
    """The form as one of the structs above. Fields of other servers (whisper.cpp's, Speaches') are
    skipped, and the log names each once; a name that is nearly one of ours is an error. Raises
    InvalidRequest."""
    if form.file is None:
        raise InvalidRequest(f"{FILE} is missing", param=FILE, code="missing_required_parameter")
    if not form.file:
        raise InvalidRequest(f"{FILE} is empty", param=FILE)
    lists = _list_fields(kind)
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {FILE: form.file_name}
    for name, value in form.fields:
        name = name.removesuffix("[]")
        if name not in known and name not in _ALL and meant(name[:100], known) is None:
            say_field(kind.__name__, name[:100])
        elif name in lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidRequest(f"{name[:100]} appears twice", param=name[:100])
        elif value or name in ("prompt",):
            values[name] = value  # An empty field says nothing.
    return convert(values, kind, strict=False)


def _list_fields(kind: Any) -> frozenset[str]:
    hints = typing.get_type_hints(kind)
    return frozenset(
        name
        for name, hint in hints.items()
        if any(typing.get_origin(each) is list for each in typing.get_args(hint))
    )


def check(request: AnyRequest) -> None:
    """Raises InvalidRequest for what is wrong whatever the model."""
    wanted = request.response_format
    if wanted is not None and wanted not in FORMATS:
        raise InvalidRequest(
            f"response_format is {wanted[:40]!r}; allowed: {', '.join(FORMATS)}",
            param="response_format",
            code="unsupported_value",
        )
    if request.stream and (wanted or "json") not in STREAMED_FORMATS:
        raise InvalidRequest(
            f"response_format is {wanted}; a stream has {' or '.join(STREAMED_FORMATS)}",
            param="response_format",
            code="unsupported_value",
        )
    if request.chunking_strategy not in (None, "auto"):
        raise InvalidRequest(
            "chunking_strategy: allowed: auto, which cuts a long recording at quiet places",
            param="chunking_strategy",
            code="unsupported_value",
        )
    if request.temperature is not None and not 0 <= request.temperature <= 1:
        raise InvalidRequest(
            f"temperature must be a number in [0, 1], not {request.temperature!r}",
            param="temperature",
        )
    if request.to_language:
        _check_output_language(request)
    if isinstance(request, TranscriptionRequest):
        _check_granularities(request.timestamp_granularities or [], wanted)
        _check_languages(request)
        for field, why in _EMPTY:
            if getattr(request, field):
                raise InvalidRequest(
                    f"{field} must be empty: {why}", param=field, code="unsupported_value"
                )


_EMPTY = (
    (
        "include",
        "token log-probabilities are not supported; verbose_json has those of segments",
    ),
    ("known_speaker_names", "speakers aren't told apart"),
    ("known_speaker_references", "speakers aren't told apart"),
)


def _check_output_language(request: AnyRequest) -> None:
    given = request.to_language or ""
    if isinstance(request, TranslationRequest):
        fits, allowed = code_of(given) == "en", "en: translations are into English"
    else:
        fits = request.language is not None and code_of(given) == code_of(request.language)
        allowed = "that of language, or none: a transcript is in the language that is spoken"
    if not fits:
        raise InvalidRequest(
            f"to_language is {given[:40]!r}; allowed: {allowed}",
            param="to_language",
            code="unsupported_value",
        )


def _check_languages(request: TranscriptionRequest) -> None:
    given = {*(request.languages or ()), *([request.language] if request.language else ())}
    if len(given) > 1:
        raise InvalidRequest(
            "languages, or language, name several; allowed: one, or none, and it is detected",
            param="languages" if request.languages else "language",
            code="unsupported_value",
        )


def _check_granularities(granularities: list[str], response_format: str | None) -> None:
    param = "timestamp_granularities"
    for each in granularities:
        if each not in GRANULARITIES:
            raise InvalidRequest(
                f"timestamp_granularities holds {each[:40]!r}; allowed: {', '.join(GRANULARITIES)}",
                param=param,
                code="unsupported_value",
            )
    if granularities and response_format != "verbose_json":
        raise InvalidRequest(
            "timestamp_granularities needs response_format verbose_json", param=param
        )


def wishes_of(request: AnyRequest) -> Wishes:
    """What its transcript is to be."""
    times, language, prompt = None, request.language, request.prompt or ""
    if isinstance(request, TranscriptionRequest):
        times = request.timestamp_granularities
        language = language or next(iter(request.languages or ()), None)
        words = ", ".join(filter(None, (*(request.keywords or ()), request.hotwords)))
        prompt = " ".join(filter(None, (words, prompt)))
    return Wishes(
        language=language or None,
        translate=isinstance(request, TranslationRequest),
        prompt=prompt,
        temperature=float(request.temperature or 0.0),
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=0 if request.top_k is None else request.top_k,
        min_p=0.0 if request.min_p is None else request.min_p,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        repetition_penalty=1.0
        if request.repetition_penalty is None
        else request.repetition_penalty,
        max_tokens=request.max_completion_tokens,
        seed=request.seed,
        pauses=request.chunking_strategy == "auto",
        silence=request.response_format == "verbose_json",
        segments="segment" in (times or ("segment",)),
        words="word" in (times or ()),
    )
