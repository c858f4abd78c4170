"""A conversation without its oldest messages, where all of it is longer than the context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from penstock.errors import InvalidRequest
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.prompt import ChatPrompt
from penstock_gateway.http.notes import note

_KEPT = ("system", "developer")
TOO_LONG = "context_length_exceeded"
ROOM = 8
"""One part in so many is left to the answer, where something has to go anyway."""
Fill = Callable[[list[Message]], Awaitable[ChatPrompt]]
"""Makes a prompt of messages."""


async def truncated_prompt(
    messages: Sequence[Message], fill: Fill, most: int, why: str
) -> ChatPrompt:
    """The prompt of the messages, of at most so many tokens: without the oldest of them, as few as
    have to go, and a little more, so that there is room for an answer. A system message stays, and
    so does the last message; a call goes with its results.

    why: the request's word for it, for the reply's header. Raises InvalidRequest where what has to
    stay is too long, and what `fill` raises.
    """
    try:
        return _checked(await fill(list(messages)), most)
    except InvalidRequest as error:
        if error.code != TOO_LONG:
            raise
    units = _units(messages)
    low, high = 0, len(units) - 1  # So many gone are too few, and enough.
    found = _checked(await fill(_without(messages, units[:high])), most)
    most -= most // ROOM
    while high - low > 1:
        middle = (low + high) // 2
        try:
            found = _checked(await fill(_without(messages, units[:middle])), most)
            high = middle
        except InvalidRequest:  # It is too long, or begins with a turn that the template refuses.
            low = middle
    left_out = sum(map(len, units[:high]))
    note(f"{why}: the oldest {left_out} of {len(messages)} messages were left out")
    return found


def _checked(made: ChatPrompt, most: int) -> ChatPrompt:
    tokens = len(made.prompt_token_ids)
    if tokens <= most:
        return made
    raise InvalidRequest(
        f"the prompt has {tokens} tokens, with none but the messages that have to stay; there is "
        f"room for {most}",
        param="messages",
        code=TOO_LONG,
    )


def _units(messages: Sequence[Message]) -> list[list[int]]:
    """Indices of messages that can go, in groups that go together, oldest first; the last group
    stays. What follows the user's words up to a call's results goes one by one, so that an agent's
    only question isn't all that is left out."""
    units: list[list[int]] = []
    for index, message in enumerate(messages):
        if message.role in _KEPT:
            continue
        if message.role == "tool" and units:
            units[-1].append(index)
        else:
            units.append([index])
    return units


def _without(messages: Sequence[Message], units: list[list[int]]) -> list[Message]:
    gone = {index for unit in units for index in unit}
    return [message for index, message in enumerate(messages) if index not in gone]
