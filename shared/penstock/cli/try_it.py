"""The line that `penstock serve` prints for a first request: right for the model and the keys."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.config.settings import ModelSettings
from penstock.model.config import PreparedModel
from penstock.request.api_keys import ENVIRONMENT


class Example(msgspec.Struct, frozen=True):
    """A request that such a model answers. body: without the model's name.  file: that a form sends
    in a body's place."""

    path: str
    body: dict[str, Any] = {}
    file: str = ""


CHAT = Example(
    "/v1/chat/completions",
    {
        "messages": [
            # The default model's own system prompt makes it ramble once its weights are quantised.
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        "temperature": 0,
        "stream": True,
    },
)
COMPLETION = Example(
    "/v1/completions",
    {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0, "stream": True},
)
EMBEDDING = Example("/v1/embeddings", {"input": "The capital of France is Paris."})
CLASSIFICATION = Example("/classify", {"input": "The capital of France is Paris."})
TRANSCRIPTION = Example("/v1/audio/transcriptions", file="recording.wav")


def example_for(model: PreparedModel, settings: ModelSettings) -> Example:
    """What a model is asked that is served with these settings."""
    stated = model.pooling
    wanted = settings.runner == "pooling" or settings.convert != "auto"
    if settings.runner != "generate" and (stated is not None or wanted):
        labels = stated is not None and stated.labels and settings.convert != "embed"
        return CLASSIFICATION if labels else EMBEDDING
    if model.media is not None and model.media.transcription is not None:
        return TRANSCRIPTION
    chats = model.has_chat_template or settings.chat_template is not None
    return CHAT if chats else COMPLETION


def curl_line(url: str, model: str, example: Example = CHAT, *, has_keys: bool = False) -> str:
    """One line to paste into a shell. has_keys: it sends the key that the environment holds."""
    key = f' -H "authorization: Bearer ${ENVIRONMENT}"' if has_keys else ""
    target = f"{url}{example.path}"
    if example.file:
        return f"curl {target}{key} -F file=@{example.file}"
    json = msgspec.json.encode({"model": model, **example.body}).decode().replace("'", "'\\''")
    return f"curl -N {target} -H 'content-type: application/json'{key} -d '{json}'"
