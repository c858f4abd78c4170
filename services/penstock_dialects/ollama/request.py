"""Bodies of /api/chat and /api/generate, the options that they share, and errors as Ollama's
clients expect them: {"error": "…"}."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.http.operations import ErrorShape
from penstock_gateway.request.dialect import Dialect, NamedField, named, same
from penstock_gateway.request.fields import (
    Flag,
    Number,
    RepetitionDetection,
    RequestFields,
    Text,
    UnsupportedField,
    Whole,
)


class OllamaError(msgspec.Struct, frozen=True):
    """The whole body of an error response, and the last line of a stream that fails."""

    error: str


def encoded(error: HTTPError, request_id: str = "") -> bytes:
    """The error as JSON."""
    return msgspec.json.encode(OllamaError(error.body.message))


ERRORS = ErrorShape(OllamaError, encoded)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """num_predict: the most tokens of the answer; below 0, or absent: as many as there is room for.
    repeat_penalty: over the whole text, whatever repeat_last_n says."""

    # These work.
    num_predict: Whole = None
    temperature: Number = None
    top_k: Whole = None
    top_p: Number = None
    min_p: Number = None
    seed: Whole = None
    stop: str | list[str] | None = None
    repeat_penalty: Number = None
    presence_penalty: Number = None
    frequency_penalty: Number = None
    repetition_detection: RepetitionDetection | None = None
    """vLLM's."""
    num_ctx: Whole = None
    """The most tokens of the prompt; see `truncate`. More than the model's context is as much."""

    # Without effect: the server's own settings decide.
    num_keep: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    num_thread: Any = None
    numa: Any = None
    low_vram: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    f16_kv: Any = None
    logits_all: Any = None
    vocab_only: Any = None
    embedding_only: Any = None
    draft_num_predict: Any = None
    repeat_last_n: Any = None
    penalize_newline: Any = None
    tfs_z: Any = None
    typical_p: Any = None
    mirostat: Any = None
    mirostat_eta: Any = None
    mirostat_tau: Any = None


class CalledTool(msgspec.Struct, frozen=True, kw_only=True):
    """arguments: an object, not its text."""

    name: str
    arguments: dict[str, Any] = {}


class MessageCall(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that are unknown here are skipped."""

    function: CalledTool
    id: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """images: base64, of a user's message. Fields that are unknown here are skipped."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[MessageCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaFields(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both share. Unlike elsewhere, an answer is streamed unless `stream` is false."""

    stream: Flag = True
    options: Options | None = None
    format: str | dict[str, Any] | None = None
    """json, or a JSON schema."""
    think: bool | str | None = None
    """Variables for the chat template: enable_thinking, and reasoning_effort if it is a word."""
    logprobs: Flag = None
    top_logprobs: Whole = None
    """How many of the likeliest tokens are shown in the place of each, as in OpenAI's chat."""

    truncate: Flag = None
    """Whether the oldest messages are left out where the prompt is longer than the context; true
    where nothing is said, as in Ollama."""
    shift: Flag = None
    """Whether an answer may be longer than num_ctx has room for: true where nothing is said. At the
    model's own context it ends, as nothing is forgotten here."""

    # Without effect on the output.
    keep_alive: Any = None


class OllamaChatRequest(OllamaFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tools: as in OpenAI's chat."""

    messages: list[ChatMessage] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """prompt: a user's message, unless `raw` says that it is the model's whole input."""

    prompt: Text = None
    system: Text = None
    images: list[str] | None = None
    raw: Flag = None

    suffix: Text = None
    """What comes after the answer: models that can fill in the middle see it, and the prompt is
    what stands before it."""

    # Only at their neutral value.
    template: Text = None
    context: list[int] | None = None
    width: Whole = None
    height: Whole = None
    steps: Whole = None


_COMMON = (
    *same("temperature", "top_k", "top_p", "min_p", "seed", "stop", within="options"),
    *same("presence_penalty", "frequency_penalty", "repetition_detection", within="options"),
    NamedField("options.repeat_penalty", "repetition_penalty"),
    *named("options.num_predict", "max_tokens", "max_completion_tokens"),
    *named("format", "response_format", "response_format.json_schema"),
    *named("format", "response_format.json_schema.schema"),
    *named("think", "reasoning_effort", "chat_template_kwargs.enable_thinking"),
)


class OllamaDialect(Dialect):
    """Ollama's names. messages: for a path in one of a chat's messages, the path in the body."""

    def __init__(
        self, messages: Callable[[str], str], unsupported: tuple[UnsupportedField, ...] = ()
    ) -> None:
        super().__init__(*_COMMON, unsupported=unsupported)
        self._messages = messages

    def theirs(self, path: str) -> str:
        return super().theirs(self._messages(path))


_MESSAGE = re.compile(r"messages\[\d+\]")
_IMAGE = re.compile(r"\.content\[(\d+)\](?:\.image_url(?:\.url)?)?")
_IN_MESSAGES = {".reasoning_content": ".thinking", ".name": ".tool_name"}


def _in_chat(path: str) -> str:
    message = _MESSAGE.match(path)
    if message is None:
        return path
    inner = path[message.end() :]
    return message[0] + _IN_MESSAGES.get(inner, _IMAGE.sub(r".images[\1]", inner))


def _in_prompt(path: str) -> str:
    """The path in a body that is one prompt with its images, perhaps after `system`."""
    if _MESSAGE.match(path) is None:
        return "prompt" if path == "messages" else path
    image = _IMAGE.search(path)
    return "prompt" if image is None else f"images[{image[1]}]{path[image.end() :]}"


CHAT_NAMES = OllamaDialect(_in_chat)
GENERATE_NAMES = OllamaDialect(
    _in_prompt,
    unsupported=(
        UnsupportedField("template", ("",)),
        UnsupportedField("context", ([],)),
        UnsupportedField("width"),
        UnsupportedField("height"),
        UnsupportedField("steps"),
    ),
)


def check(request: OllamaFields) -> None:
    """Checks what needs no model. Raises InvalidRequest."""
    if isinstance(request.format, str) and request.format not in ("", "json"):
        raise InvalidRequest(
            f"format is {clip(request.format)}; allowed: json, or a JSON schema as an object",
            param="format",
            code="invalid_value",
        )


def gives_up(keep_alive: Any) -> bool:
    """Whether an idle model is to be unloaded at once."""
    return keep_alive in (0, "0", "0s", "0m", "0h") and keep_alive is not False
