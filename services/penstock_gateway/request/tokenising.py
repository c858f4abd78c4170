"""Text to token ids without holding up the event loop.

What takes time runs in a thread, by library calls that let go of the interpreter's lock.  Few run
at once, and of one tenant's only one, so that streams keep a core and no tenant waits for all of
another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from typing import Literal, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from penstock.errors import InvalidRequest
from penstock.protocol.from_frontend import MAX_PREDICTION_TOKENS
from penstock.request.tenant_places import TenantPlaces, one_each
from penstock_gateway.models.backend import EngineInfo

Made = TypeVar("Made")

LONG_TEXT = 20_000
"""Characters from which on tokenising goes to a thread."""
MAX_CHARACTERS_PER_TOKEN = 64
"""A longer text than this many for each token of the context can't fit: don't even tokenise it."""
MAX_GIVEN_BYTES = 8 << 20
"""Bytes that a chat template is given at most, whatever the context."""
FEW_TOKENS = 4096
"""Number of tokens up to which a text is always counted to its end, so that an error can name the
exact count."""

tenant: ContextVar[str] = ContextVar("tenant", default="")
"""The tenant whose request is being worked on."""


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, TenantPlaces] = WeakKeyDictionary()
_LOOP_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, TenantPlaces] = WeakKeyDictionary()


_AT_ONCE = nullcontext()
AT_A_TIME = 2
"""Long texts that are worked on at a time."""


def turn(size: int) -> AbstractAsyncContextManager[None]:
    """The tenant's turn, if there is much to do."""
    if size <= LONG_TEXT:
        return _AT_ONCE
    turns = _TURNS.setdefault(asyncio.get_running_loop(), TenantPlaces(AT_A_TIME, one_each))
    return turns.place(tenant.get())


@asynccontextmanager
async def loop_turn() -> AsyncIterator[None]:
    """The tenant's turn at long work on the event loop itself, which rests again and again: one at
    a time, or their pieces would add up between two turns of a stream."""
    turns = _LOOP_TURNS.setdefault(asyncio.get_running_loop(), TenantPlaces(1, one_each))
    async with turns.place(tenant.get()):
        yield


async def encode(run: Callable[[int], list[int]], characters: int, limit: int) -> list[int]:
    """`run(most)`, which tokenises a text of so many characters for a context of `limit` tokens,
    and refuses one of clearly more than `most`.

    Raises InvalidRequest at once when the text is far too long.
    """
    check_length(characters, limit)
    return await off_the_loop(lambda: run(most_tokens(limit)), characters)


async def off_the_loop(run: Callable[[], Made], characters: int) -> Made:
    """`run()`, which tokenises so many characters, in a thread if they are many."""
    if characters <= LONG_TEXT:
        return run()
    async with turn(characters):
        return await asyncio.to_thread(run)


def most_tokens(limit: int) -> int:
    """Tokens from which on counting is in vain for a context of `limit`."""
    return max(FEW_TOKENS, 2 * limit)


def check_length(characters: int, limit: int) -> None:
    """Raises InvalidRequest for a text that can't be a prompt, however it is tokenised."""
    most = limit * MAX_CHARACTERS_PER_TOKEN
    if characters > most:
        raise InvalidRequest(
            f"the prompt has {characters} characters; at most {most} are accepted, and this "
            f"model's context is {limit} tokens, output included",
            param="prompt",
            code="context_length_exceeded",
        )


class PredictionPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of it."""

    text: str
    type: Literal["text"] = "text"


class Prediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that the output is expected to resemble, as a file of which little is to be changed.
    It makes an output quicker where it is right, and changes nothing where it is wrong."""

    content: str | list[PredictionPart]
    type: Literal["content"] = "content"

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


async def predicted_ids(prediction: Prediction | None, engine: EngineInfo) -> list[int]:
    """The token ids to draft from. What is more than an output can have is left out."""
    if prediction is None:
        return []
    most = min(MAX_PREDICTION_TOKENS, engine.welcome.limits.max_model_len)
    text = prediction.text[: most * MAX_CHARACTERS_PER_TOKEN]
    tokenizer = engine.text.tokenizer
    ids = await off_the_loop(
        lambda: tokenizer.encode(text, add_special=False, first=most), len(text)
    )
    return ids[:most]
