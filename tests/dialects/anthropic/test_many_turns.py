"""Long conversations are read in time that grows as they do."""

from __future__ import annotations

import time

import msgspec

from penstock_dialects.anthropic.conversation import Conversation
from penstock_dialects.anthropic.request import ConversationFields

THOUGHT = "t" * 2000


def read(turns: int) -> tuple[Conversation, float]:
    """Assistant turns one after another, which become one, and the processor seconds that took."""
    thinking = {"type": "thinking", "thinking": THOUGHT, "signature": ""}
    said = {"role": "assistant", "content": [thinking, {"type": "text", "text": "a"}]}
    messages = [{"role": "user", "content": "Hi"}, *[said] * turns, {"role": "user", "content": ""}]
    request = msgspec.convert({"messages": messages}, ConversationFields)
    before = time.thread_time()
    conversation = Conversation(request)
    return conversation, time.thread_time() - before


def test_thoughts_of_turns_that_become_one_are_joined_once() -> None:
    conversation, _ = read(3)
    (_, said, _) = conversation.chat.messages or ()
    assert said.reasoning_content == "\n".join([THOUGHT] * 3)
    few = min(read(500)[1] for _ in range(3))
    assert min(read(4000)[1] for _ in range(2)) < 30 * few, "8 times as many; the square were 64"
