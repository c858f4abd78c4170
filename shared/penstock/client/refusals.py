"""Requests that can't run: those refused here, and what an engine core's refusal means."""

from __future__ import annotations

from penstock.errors import (
    EngineUnavailable,
    InvalidRequest,
    Limited,
    Overloaded,
    PenstockError,
)
from penstock.protocol.to_frontend import Rejected, Welcome


def check_prompt(prompt: list[int], welcome: Welcome) -> None:
    """Raises InvalidRequest for a prompt that can't run: empty, too long, ids out of range."""
    if not prompt:
        raise InvalidRequest("the prompt is empty; it must hold at least one token", param="prompt")
    limit = welcome.limits.max_model_len
    if len(prompt) >= limit:
        raise InvalidRequest(
            f"the prompt has {len(prompt)} tokens; this model's context is {limit} tokens, "
            "output included",
            param="prompt",
            code="context_length_exceeded",
        )
    vocabulary = welcome.limits.vocab_size
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        bad = next(token for token in prompt if not 0 <= token < vocabulary)
        raise InvalidRequest(
            f"token id {bad} is not in the vocabulary, 0 to {vocabulary - 1}", param="prompt"
        )


def rejection(message: Rejected) -> PenstockError:
    """The exception that a Rejected stands for."""
    if message.code == "invalid":
        return InvalidRequest(message.message)
    retry_after = message.retry_after_ms / 1000
    if message.code == "limited":
        return Limited(message.message, retry_after=retry_after)
    if message.code == "overloaded":
        return Overloaded(message.message, retry_after=retry_after)
    return EngineUnavailable(message.message)
