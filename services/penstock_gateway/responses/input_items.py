"""Items of a conversation, as a request to respond brings them."""

from __future__ import annotations

from typing import Any

import msgspec


class InputPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of an input message; or of a reply, ours or another server's, sent back. Fields that are
    unknown here are skipped. image_url, detail, uuid: of an input_image.  file_data: of an
    input_file, a data: URI.  stdout, stderr, outcome: of what a shell's command did, which has no
    type."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    outcome: Any = None
    image_url: Any = None
    input_audio: Any = None
    detail: Any = None
    uuid: Any = None
    file_id: Any = None
    file_data: Any = None


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """type: message (or nothing), a call or its output, reasoning, item_reference, or one of those
    that are left out. id: that an item has, or that of the one an item_reference means.  namespace:
    of a call's tool.  summary, encrypted_content: of reasoning.  input, action, operation: of calls
    that are of no function.  tools: of additional_tools and tool_search_output.  Fields that are
    unknown here are skipped."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
    input: str | None = None
    action: Any = None
    operation: Any = None
    status: str | None = None
    tools: list[dict[str, Any]] | None = None
    output: str | list[InputPart] | dict[str, Any] | None = None
