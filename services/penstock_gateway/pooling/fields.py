"""Request fields that the pooling endpoints share. Names are OpenAI's, then vLLM's."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock_gateway.pooling.messages import PoolMessage

Number = float | None
Whole = int | None
Flag = bool | None
Text = str | None

MAX_INPUTS = 2048
"""Texts, or pairs of them, in one request."""


class PoolFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """truncate_prompt_tokens: longer inputs are cut to so many tokens; -1: to as many as the model
    takes; absent: they are refused.  priority, deadline_ms, cache_salt: as in completions.
    mm_processor_kwargs: how the request's pictures are prepared."""

    model: Text = None
    truncate_prompt_tokens: Whole = None
    request_id: Text = None
    priority: Whole = None
    deadline_ms: Whole = None
    cache_salt: Text = None

    mm_processor_kwargs: dict[str, Any] | None = None

    # --- without effect on the output
    user: Text = None
    metadata: dict[str, Any] | None = None


class VectorFields(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """messages: an input as chats have it, in place of `input`: a text, or one picture, of a model
    that makes vectors of both.  encoding_format: base64 is that of little-endian float32.
    dimensions: numbers kept of each vector.  normalize: to length 1, after that; absent: as the
    model has it."""

    messages: list[PoolMessage] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole = None
    normalize: Flag = None
    add_special_tokens: Flag = None
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None


class PoolUsage(msgspec.Struct, frozen=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
