"""The items that a response is made of: a message, thoughts, calls."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock_gateway.generate.logprobs import ChatLogprob


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """logprobs: empty unless they were asked for."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    """status, of every item: in_progress, completed or incomplete."""

    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """What the model thought to itself. summary: there is none."""

    id: str
    status: str
    content: list[ReasoningText]
    summary: list[Any] = []


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """arguments: JSON, as the model wrote it. Cut short where the answer was."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem
