"""Log-probabilities as the two endpoints show them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.protocol.common import TokenLogprobs
    from penstock.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""What OpenAI shows for a token that is impossible, or as good as."""


class TopLogprob(msgspec.Struct, gc=False):
    """A token that could have been. bytes: its UTF-8 bytes; half a character is possible."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, gc=False):
    """The token that was emitted, and the likeliest ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of the tokens of a choice, or of a chunk of one."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one element a token. text_offset: characters of the choice's text before
    the token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, gc=False):
    """rank: 1 for the likeliest token; null for one that is not among those asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""A prompt's log-probabilities as vLLM has them: for each of its tokens, itself and the likeliest
in its place by token id; null for the first, which nothing comes before."""


def chat_logprobs(
    tokenizer: Tokenizer,
    ids: list[int],
    logprobs: list[TokenLogprobs] | None,
    *,
    as_ids: bool = False,
) -> ChatLogprobs:
    """Chat's log-probabilities of some emitted tokens. as_ids: write tokens as token_id:5."""
    content = []
    for token, at in zip(ids, logprobs or (), strict=False):
        raw = tokenizer.token_bytes(token)
        top = [
            _top(tokenizer, other, logprob, as_ids)
            for other, logprob in zip(at.top_ids, at.top_logprobs, strict=False)
        ]
        text = id_text(token) if as_ids else token_text(raw)
        content.append(ChatLogprob(text, max(at.logprob, LOWEST), list(raw), top))
    return ChatLogprobs(content)


def completion_logprobs(
    tokenizer: Tokenizer,
    ids: list[int],
    logprobs: Sequence[TokenLogprobs | None] | None,
    offset: int,
    *,
    as_ids: bool = False,
    hidden: Container[int] = (),
) -> tuple[CompletionLogprobs, int]:
    """Log-probabilities of some tokens, the first at `offset`; and the offset of what follows.

    None for a prompt's first token.  as_ids: write tokens as token_id:5.  hidden: tokens that the
    text doesn't show.  An offset below 0 is before the text.  The emitted token is always the first
    of its `top_logprobs` (as in vLLM), so they may be one more than asked for.
    """
    out = CompletionLogprobs([], [], [], [])
    for token, at in zip(ids, logprobs or (), strict=False):
        raw = tokenizer.token_bytes(token)
        text = id_text(token) if as_ids else _legacy(raw)
        out.tokens.append(text)
        if at is None:
            out.token_logprobs.append(None)
            out.top_logprobs.append(None)
        else:
            top = {text: max(at.logprob, LOWEST)}
            for other, logprob in zip(at.top_ids, at.top_logprobs, strict=False):
                name = id_text(other) if as_ids else _legacy(tokenizer.token_bytes(other))
                top[name] = max(logprob, LOWEST)
            out.token_logprobs.append(max(at.logprob, LOWEST))
            out.top_logprobs.append(top)
        out.text_offset.append(max(offset, 0))
        if token not in hidden:
            offset += _characters(raw)
    return out, offset


def characters_of(tokenizer: Tokenizer, ids: list[int]) -> int:
    """Characters that begin in these tokens."""
    return sum(_characters(tokenizer.token_bytes(token)) for token in ids)


def _characters(raw: bytes) -> int:
    """Characters that begin in a token: its bytes but for UTF-8's continuation bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)


def prompt_logprobs(
    tokenizer: Tokenizer,
    prompt_token_ids: list[int],
    logprobs: list[TokenLogprobs | None],
    top: int,
) -> PromptLogprobs:
    """Log-probabilities of a whole prompt. top: how many of the likeliest tokens to show."""
    out: PromptLogprobs = []
    for token, at in zip(prompt_token_ids, logprobs, strict=False):
        if at is None:
            out.append(None)
            continue
        ranks = {other: place for place, other in enumerate(at.top_ids, start=1)}
        values = dict(zip(at.top_ids[:top], at.top_logprobs, strict=False))
        out.append(
            {
                other: PromptLogprob(
                    max(value, LOWEST), ranks.get(other), token_text(tokenizer.token_bytes(other))
                )
                for other, value in ({token: at.logprob} | values).items()
            }
        )
    return out


def id_text(token: int) -> str:
    """How return_tokens_as_token_ids has a token written."""
    return f"token_id:{token}"


def _top(tokenizer: Tokenizer, token: int, logprob: float, as_ids: bool) -> TopLogprob:
    raw = tokenizer.token_bytes(token)
    text = id_text(token) if as_ids else token_text(raw)
    return TopLogprob(text, max(logprob, LOWEST), list(raw))


def token_text(raw: bytes) -> str:
    """A token's text; one that is not whole characters is shown as \\x escapes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in raw)


def _legacy(raw: bytes) -> str:
    """A token's text; one that is not whole characters is shown as `bytes:` and \\x escapes, since
    the completions endpoint has no bytes field."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
