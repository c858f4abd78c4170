"""Log-probabilities as the two endpoints show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.protocol.common import TokenLogprobs
    from penstock.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""What OpenAI shows for a token that is impossible, or as good as."""


class TopLogprob(msgspec.Struct):
    """A token that could have been. bytes: its UTF-8 bytes; half a character is possible."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    """The token that was emitted, and the likeliest ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Of a choice, or of a chunk of one."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one element a token. text_offset: characters of the choice's text before
    the token, by the texts of the tokens."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def chat_logprobs(
    tokenizer: Tokenizer, ids: list[int], logprobs: list[TokenLogprobs] | None
) -> ChatLogprobs:
    """Of some emitted tokens."""
    content = []
    for token, at in zip(ids, logprobs or (), strict=False):
        raw = tokenizer.token_bytes(token)
        top = [
            _top(tokenizer, other, logprob)
            for other, logprob in zip(at.top_ids, at.top_logprobs, strict=False)
        ]
        content.append(ChatLogprob(shown(raw), max(at.logprob, LOWEST), list(raw), top))
    return ChatLogprobs(content)


def completion_logprobs(
    tokenizer: Tokenizer, ids: list[int], logprobs: list[TokenLogprobs] | None, offset: int
) -> tuple[CompletionLogprobs, int]:
    """Of some emitted tokens, the first at `offset`; and the offset of what follows.

    The emitted token is always among its `top_logprobs`, so they may be one more than asked for.
    """
    out = CompletionLogprobs([], [], [], [])
    for token, at in zip(ids, logprobs or (), strict=False):
        raw = tokenizer.token_bytes(token)
        top = {
            _legacy(tokenizer.token_bytes(other)): max(logprob, LOWEST)
            for other, logprob in zip(at.top_ids, at.top_logprobs, strict=False)
        }
        text = _legacy(raw)
        top.setdefault(text, max(at.logprob, LOWEST))
        out.tokens.append(text)
        out.token_logprobs.append(max(at.logprob, LOWEST))
        out.top_logprobs.append(top)
        out.text_offset.append(offset)
        # Characters that begin in this token: its bytes but for UTF-8's continuation bytes.
        offset += sum(byte & 0xC0 != 0x80 for byte in raw)
    return out, offset


def _top(tokenizer: Tokenizer, token: int, logprob: float) -> TopLogprob:
    raw = tokenizer.token_bytes(token)
    return TopLogprob(shown(raw), max(logprob, LOWEST), list(raw))


def shown(raw: bytes) -> str:
    """A token's text; one that is not whole characters is shown as \\x escapes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in raw)


def _legacy(raw: bytes) -> str:
    """As `shown`; escapes are marked, since the completions endpoint has no bytes field."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
