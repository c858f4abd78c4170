"""Text to token ids without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.errors import InvalidRequest

LONG_TEXT = 20_000
"""Characters from which on tokenising goes to a thread."""
MAX_CHARACTERS_PER_TOKEN = 64
"""A longer text than this many for each token of the context can't fit: don't even tokenise it."""


async def encode(run: Callable[[], list[int]], characters: int, limit: int) -> list[int]:
    """`run()`, which tokenises a text of so many characters for a context of `limit` tokens.

    Raises InvalidRequest at once when the text is far too long.
    """
    check_length(characters, limit)
    if characters > LONG_TEXT:
        return await asyncio.to_thread(run)
    return run()


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
