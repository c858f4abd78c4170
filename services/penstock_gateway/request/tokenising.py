"""Text to token ids without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import InvalidRequest

Made = TypeVar("Made")

LONG_TEXT = 20_000
"""Characters from which on tokenising goes to a thread."""
MAX_CHARACTERS_PER_TOKEN = 64
"""A longer text than this many for each token of the context can't fit: don't even tokenise it."""


async def encode(run: Callable[[], list[int]], characters: int, limit: int) -> list[int]:
    """`run()`, which tokenises a text of so many characters for a context of `limit` tokens.

    Raises InvalidRequest at once when the text is far too long.
    """
    check_length(characters, limit)
    return await off_the_loop(run, characters)


async def off_the_loop(run: Callable[[], Made], characters: int) -> Made:
    """`run()`, which tokenises so many characters, in a thread if they are many."""
    return await asyncio.to_thread(run) if characters > LONG_TEXT else run()


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
