"""The items that a response is made of: a message, thoughts, calls."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

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


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    text: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """What the model thought to itself. summary: the same, if a summary was asked for.
    encrypted_content: the same again, where that was to be included."""

    id: str
    status: str
    content: list[ReasoningText]
    summary: list[SummaryText] = []
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """arguments: JSON, as the model wrote it. Cut short where the answer was.  namespace: only
    where the function is in one."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    """input: any text."""

    id: str
    status: str
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class LocalShellCallItem(msgspec.Struct, tag_field="type", tag="local_shell_call"):
    """action: of type exec, with command, env, working_directory and timeout_ms."""

    id: str
    status: str
    call_id: str
    action: dict[str, Any]


class ShellCallItem(msgspec.Struct, tag_field="type", tag="shell_call"):
    """action: commands, timeout_ms and max_output_length."""

    id: str
    status: str
    call_id: str
    action: dict[str, Any]


class ApplyPatchCallItem(msgspec.Struct, tag_field="type", tag="apply_patch_call"):
    """operation: of type create_file, update_file or delete_file, with path and diff."""

    id: str
    status: str
    call_id: str
    operation: dict[str, Any]


OtherItem = (
    ReasoningItem
    | FunctionCallItem
    | CustomCallItem
    | LocalShellCallItem
    | ShellCallItem
    | ApplyPatchCallItem
)
OutputItem = OutputMessage | OtherItem
