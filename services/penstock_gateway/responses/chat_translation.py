"""Turns a request for a response into a chat request, and chat's errors into this request's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.errors import Field, InvalidRequest
from penstock_gateway.chat.endpoint import ChatRequest
from penstock_gateway.chat.messages import Message
from penstock_gateway.http.errors import clip
from penstock_gateway.request.dialect import Dialect, NamedField, moved, named, same
from penstock_gateway.request.structure import JsonSchemaFormat, ResponseFormat
from penstock_gateway.responses.input_items import (
    COMPACTION,
    QUESTION,
    InputItem,
    InputPart,
    summary_of,
)
from penstock_gateway.responses.output import unsealed
from penstock_gateway.responses.request import LOGPROBS, ResponsesRequest, TextOptions
from penstock_gateway.responses.tool_kinds import BY_CALL, OUTPUTS, missing, needed
from penstock_gateway.responses.tools import ResponseTools


class ChatTranslation:
    """A request in chat's terms, and the way back from chat's names to this request's.

    before: items of the conversation that it goes on from.  Raises InvalidRequest for an item that
    is none.
    """

    def __init__(self, request: ResponsesRequest, before: Sequence[InputItem] = ()) -> None:
        own = [] if isinstance(request.input, str) else request.input or []
        self.tools = ResponseTools(request.tools, _brought([*before, *own]))
        self._messages: list[dict[str, Any]] = []
        self._sources: list[str] = []
        self._calls: dict[tuple[int, int], str] = {}
        """The place in the request of the item that each call of a message comes from."""
        self._thoughts: list[str] = []
        """Thoughts of the assistant, whose message is still to come."""
        self._pictures: list[tuple[list[dict[str, Any]], str]] = []
        """Pictures and sounds of each tool's output, and where it is; the user shows them after the
        outputs: a tool's message holds text alone."""
        if request.instructions:
            self._add({"role": "system", "content": request.instructions}, "instructions")
        source = PREVIOUS if request.conversation is None else CONVERSATION
        for item in before:
            self._take(item, source)
        known = len(self._sources), len(self._calls)
        if request.input is None and not (before and request.conversation is not None):
            raise InvalidRequest(
                "input is missing", param="input", code="missing_required_parameter"
            )
        if isinstance(request.input, str):
            self._add({"role": "user", "content": request.input}, "input")
        elif request.input is None:
            known = 0, 0  # It goes on from what the conversation ends with.
        else:
            for place, item in enumerate(request.input):
                self._take(item, f"input[{place}]")
        self._show_pictures()
        if (len(self._sources), len(self._calls)) == known:
            raise InvalidRequest("input is empty; it must have at least one item", param="input")
        wants_logprobs = LOGPROBS in (request.include or ())
        self.chat = ChatRequest(
            messages=[msgspec.convert(message, Message) for message in self._messages],
            logprobs=wants_logprobs or request.top_logprobs is not None,
            response_format=_format(request.text),
            tools=self.tools.chat or None,
            tool_choice=self.tools.choice(request.tool_choice),
            reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
            **RESPONSES.ours(request),
        )

    def own_words(self, error: InvalidRequest) -> InvalidRequest:
        """An error of chat's, in the names of this request."""
        own = self._source(error.param or "")
        if own in (PREVIOUS, CONVERSATION):
            pieces = (": a message of that conversation is invalid: ", *error.said)
            return type(error)(Field(own), *pieces, param=own, code=error.code)
        return error.renamed(lambda path: RESPONSES.theirs(self._place(path)))

    def _source(self, path: str) -> str | None:
        """Where the message of a path comes from; None if it is in none."""
        place = _MESSAGE.match(path)
        if place is None or int(place[1]) >= len(self._sources):
            return None
        return self._sources[int(place[1])]

    def _place(self, path: str) -> str:
        """The path in this request of what is in chat's messages or tools. Fields of a function are
        flat here."""
        tool = _TOOL.match(path)
        if tool is not None:
            return self.tools.places[int(tool[1])] + path[tool.end() :]
        call = _CALL.match(path)
        if call is not None and (item := self._calls.get((int(call[1]), int(call[2])))) is not None:
            return item + path[call.end() :]
        own = self._source(path)
        if own is None:
            return path
        place = path[: path.index("]") + 1]
        if not own.startswith("input[") or own.endswith(".output"):
            place += ".content"  # It is a text of its own, or what a tool showed.
        return moved(path, place, own)

    def _add(self, message: dict[str, Any], source: str) -> None:
        if message["role"] != "tool":
            self._show_pictures()
        thoughts, self._thoughts = "\n".join(self._thoughts), []
        if thoughts and message["role"] == "assistant":
            message["reasoning_content"] = thoughts
        elif thoughts and self._messages:
            # A turn that was cut short while the model still thought.
            self._add({"role": "assistant", "content": "", "reasoning_content": thoughts}, source)
        self._messages.append(message)
        self._sources.append(source)

    def _take(self, item: InputItem, where: str) -> None:
        match item.type:
            case None | "message":
                if item.role is None:
                    missing(f"{where}.role")
                self._add({"role": item.role, "content": _message_content(item, where)}, where)
            case call if call in BY_CALL:
                self._take_call(item, where)
            case output if output in OUTPUTS:
                self._take_output(item, where)
            case "reasoning":
                self._show_pictures()
                # A template may show the model those of the turn that is going on.
                if thoughts := _thoughts(item, where):
                    self._thoughts.append(thoughts)
            case kind if kind == COMPACTION:
                self._add({"role": "user", "content": QUESTION}, where)
                self._add({"role": "assistant", "content": summary_of(item, where)}, where)
            case other if other in LEFT_OUT_ITEMS:
                """What another server's own tools did."""
            case _:
                allowed = ", ".join((COMPACTION, *BY_CALL, *sorted(OUTPUTS)))
                raise InvalidRequest(
                    f"{where}.type is {clip(item.type)}; allowed: message, reasoning, "
                    f"{allowed}; left out without an error: "
                    f"{', '.join(sorted(LEFT_OUT_ITEMS))}",
                    param=f"{where}.type",
                    code="invalid_value",
                )

    def _take_output(self, item: InputItem, where: str) -> None:
        # That of a local_shell_call is named by its id.
        id = needed(item.call_id or item.id, f"{where}.call_id")
        text, pictures = _tool_output(item, f"{where}.output")
        self._add({"role": "tool", "tool_call_id": id, "content": text}, where)
        if pictures:
            self._pictures.append((pictures, f"{where}.output"))

    def _show_pictures(self) -> None:
        shown, self._pictures = self._pictures, []
        for parts, where in shown:
            self._add({"role": "user", "content": parts}, where)

    def _take_call(self, item: InputItem, where: str) -> None:
        kind = BY_CALL[item.type or ""]
        id = needed(item.call_id, f"{where}.call_id")
        name = self.tools.function_of(kind.name(item, where), item.namespace)
        function = {"name": name, "arguments": kind.arguments(item, where)}
        call = {"id": id, "type": "function", "function": function}
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "assistant" or self._thoughts:
            last = {"role": "assistant", "content": ""}
            self._add(last, where)
        calls = last.setdefault("tool_calls", [])
        self._calls[len(self._messages) - 1, len(calls)] = where
        calls.append(call)


_MESSAGE = re.compile(r"messages\[(\d+)\]")
_TOOL = re.compile(r"tools\[(\d+)\](?:\.function\b)?")
_CALL = re.compile(r"messages\[(\d+)\]\.tool_calls\[(\d+)\]\.function\b")
PREVIOUS, CONVERSATION = "previous_response_id", "conversation"
"""Sources of what was said before."""
TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
LEFT_OUT_ITEMS = frozenset(
    {
        "additional_tools",
        "code_interpreter_call",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "ghost_snapshot",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Items of other servers' own tools, which a conversation has that began there; and those that
bring tools."""
_BRING_TOOLS = ("additional_tools", "tool_search_output")
_MEDIA = ("input_image", "input_audio", "input_file")
_OF_FILES = ("file_data", "file_url", "file_id", "filename")
RESPONSES = Dialect(
    *same("temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *same("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *same("repetition_detection", "stop_token_ids", "ignore_eos", "skip_special_tokens"),
    *same("include_stop_str_in_output", "structured_outputs", "mm_processor_kwargs"),
    *same("top_logprobs", "chat_template_kwargs", "parallel_tool_calls"),
    NamedField("max_output_tokens", "max_completion_tokens"),
    *named("max_output_tokens", "max_tokens"),
    *named("text.format", "response_format.json_schema", "response_format"),
    *named("reasoning.effort", "reasoning_effort"),
    *named("tool_choice", "tool_choice.allowed_tools"),
    *named("input", "messages"),
)
"""The names of a response's request; ChatTranslation has those within its input and tools."""


def _format(text: TextOptions | None) -> ResponseFormat | None:
    given = text.format if text is not None else None
    if given is None or given.type == "text":
        return None
    if given.type not in ("json_object", "json_schema"):
        raise InvalidRequest(
            f"text.format.type is {clip(given.type)}; allowed: text, json_object, json_schema",
            param="text.format.type",
        )
    if given.type == "json_object":
        return ResponseFormat(type="json_object")
    if given.name is None:
        missing("text.format.name")
    named = JsonSchemaFormat(
        name=given.name, schema=given.schema, strict=given.strict, description=given.description
    )
    return ResponseFormat(type="json_schema", json_schema=named)


def _brought(items: Sequence[InputItem]) -> Iterator[dict[str, Any]]:
    """Tools that the conversation's items bring."""
    for item in items:
        if item.type in _BRING_TOOLS:
            yield from item.tools or ()


def _tool_output(item: InputItem, where: str) -> tuple[str, list[dict[str, Any]]]:
    """What a tool said, as text, and the pictures and sounds that it showed."""
    output = item.output
    if output is None and item.type == "apply_patch_call_output":
        output = item.status or ""
    if isinstance(output, dict):
        raise InvalidRequest(f"{where} must be a text or a list of parts", param=where)
    if not isinstance(output, list):
        return _content(output, where), []
    texts, shown = [], []
    for number, part in enumerate(output):
        place = f"{where}[{number}]"
        if part.type in _MEDIA:
            shown.append(_chat_part(part, place))
        elif item.type == "shell_call_output":
            texts.append(_command_output(part))
        else:
            texts.append(_part(part, place))
    return "\n".join(texts), shown


def _command_output(part: InputPart) -> str:
    """What one command of a shell did."""
    said = [text for text in (part.stdout, part.stderr) if text]
    outcome = part.outcome if isinstance(part.outcome, dict) else {}
    if outcome.get("type") == "timeout":
        said.append("timed out")
    elif outcome.get("exit_code"):
        said.append(f"exit code {outcome['exit_code']}")
    return "\n".join(said)


def _thoughts(item: InputItem, where: str) -> str:
    """An item's thoughts, from the first field that has them; clients leave out one or the
    other."""
    if item.content:
        return _content(item.content, f"{where}.content")
    if sealed := unsealed(item.encrypted_content):
        return sealed
    return _content(item.summary, f"{where}.summary") if item.summary else ""


def _message_content(item: InputItem, where: str) -> str | list[dict[str, Any]]:
    """The content as chat has it: a text, or a list of parts if there are media."""
    content, place = item.content, f"{where}.content"
    if not isinstance(content, list) or all(part.type not in _MEDIA for part in content):
        return _content(content, place)
    return [_chat_part(part, f"{place}[{number}]") for number, part in enumerate(content)]


def _chat_part(part: InputPart, where: str) -> dict[str, Any]:
    if part.type not in _MEDIA:
        return {"type": "text", "text": _part(part, where)}
    if part.file_id is not None and part.type != "input_file":
        raise InvalidRequest(
            f"{where}.file_id refers to a stored file; send the file itself",
            param=f"{where}.file_id",
            code="unsupported_value",
        )
    if part.type == "input_file":
        file = {name: getattr(part, name) for name in _OF_FILES}
        if not any(file.values()):
            missing(f"{where}.file_data")
        return {"type": "file", "file": file, "uuid": part.uuid}
    return {
        "type": part.type,
        "image_url": part.image_url,
        "input_audio": part.input_audio,
        "detail": part.detail,
        "uuid": part.uuid,
    }


def _content(content: str | list[InputPart] | None, where: str) -> str:
    if content is None:
        missing(where)
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{where}[{place}]") for place, part in enumerate(content))


def _part(part: InputPart, where: str) -> str:
    if part.type in TEXTS and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in _MEDIA:
        raise InvalidRequest(
            f"{where} has type {part.type}, which is not supported here; allowed: "
            "input_text, output_text, and in messages input_image, input_audio and input_file",
            param=where,
            code="unsupported_value",
        )
    if part.type in (*TEXTS, "refusal"):
        missing(f"{where}.text")
    raise InvalidRequest(
        f"{where}.type is {clip(part.type)}; allowed: input_text, output_text, input_image, "
        "input_audio, input_file",
        param=f"{where}.type",
        code="invalid_value",
    )
