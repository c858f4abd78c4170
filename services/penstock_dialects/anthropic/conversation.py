"""Turns Anthropic's messages into those of a chat, and chat's errors into this request's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

import msgspec

from penstock.errors import InvalidRequest
from penstock_dialects.anthropic.request import (
    ANTHROPIC,
    ContentBlock,
    ConversationFields,
    FoundText,
    InputMessage,
    InputTool,
    MediaContent,
    ShownBlock,
    ToolChoiceField,
    budget_of,
)
from penstock_gateway.chat.endpoint import ChatRequest
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.thinking import ThinkingSwitch
from penstock_gateway.chat.tool_choice import ChoiceObject, NamedFunction, ToolChoice
from penstock_gateway.chat.tools import FunctionDefinition, Tool
from penstock_gateway.http.errors import clip
from penstock_gateway.request.structure import JsonSchemaFormat, ResponseFormat

ROLES = ("user", "assistant", "system")
REASONING = "reasoning_content"
_MESSAGE = re.compile(r"messages\[(\d+)\](?:\.content(?:\[(\d+)\])?)?")
_FUNCTION = re.compile(r"(tools\[\d+\])\.function\b(\.parameters)?")


class Conversation:
    """A conversation in chat's terms, and the way back from chat's names to its own.

    Turns of the same role that follow each other become one, as Anthropic has it: many templates
    insist on turns that alternate. Raises InvalidRequest for a block that is none.
    """

    def __init__(self, request: ConversationFields, **own: Any) -> None:
        """`own`: further fields of the chat request, in chat's names."""
        self._messages: list[dict[str, Any]] = []
        self._sources: list[tuple[str, list[str]]] = []
        """The place in the request of each message, and of each of its parts."""
        self._thoughts: dict[int, list[str]] = {}
        """Thoughts of messages, by their place."""
        if request.system:
            self._add("system", _texts(request.system, "system"), "system", "system")
        for place, message in enumerate(request.messages or ()):
            self._take(message, f"messages[{place}]")
        for place, thoughts in self._thoughts.items():
            # A template may show the model those of the turn that is going on.
            self._messages[place][REASONING] = "\n".join(thoughts)
        prefilled = self._messages[-1]["role"] == "assistant"
        if prefilled and self._messages[-1].get("tool_calls"):
            raise InvalidRequest(
                "the last message is an assistant message that ends with a tool_use, so it can't "
                "be continued; the next message must be a user message with the tool_result",
                param="messages",
            )
        config = request.output_config
        self.chat = ChatRequest(
            messages=[msgspec.convert(message, Message) for message in self._messages],
            tools=[tool_of(tool, place) for place, tool in enumerate(request.tools or ())] or None,
            tool_choice=choice_of(request.tool_choice),
            parallel_tool_calls=parallel_of(request.tool_choice),
            continue_final_message=True if prefilled else None,
            reasoning_effort=None if config is None else config.effort,
            response_format=_format(request),
            chat_template_kwargs=request.chat_template_kwargs,
            thinking=_switch(request),
            **own,
        )

    def own_words(self, error: InvalidRequest) -> InvalidRequest:
        """An error of chat's, in the names of this request."""
        return error.renamed(lambda path: ANTHROPIC.theirs(self._place(path)))

    def _place(self, path: str) -> str:
        """The path in this request of what is in chat's messages or tools."""
        message = _MESSAGE.match(path)
        if message is not None and int(message[1]) < len(self._sources):
            whole, parts = self._sources[int(message[1])]
            return (whole if message[2] is None else parts[int(message[2])]) + path[message.end() :]
        tool = _FUNCTION.match(path)
        if tool is None:
            return path
        return f"{tool[1]}{'.input_schema' if tool[2] else ''}{path[tool.end() :]}"

    def _add(
        self, role: str, parts: list[dict[str, Any]], where: str, *places: str
    ) -> dict[str, Any]:
        """Adds parts to the last message if it is of that role, and has no calls; else a message
        of its own. `places`: where each part comes from; one may stand for all."""
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != role or last.get("tool_calls"):
            last = {"role": role, "content": []}
            self._messages.append(last)
            self._sources.append((where, []))
        last["content"] += parts
        self._sources[-1][1].extend(places * len(parts) if len(places) == 1 else places)
        return last

    def _take(self, message: InputMessage, where: str) -> None:
        if message.role not in ROLES:
            raise InvalidRequest(
                f"{where}.role is {clip(message.role)}; allowed: {', '.join(ROLES)}",
                param=f"{where}.role",
                code="invalid_value",
            )
        place = f"{where}.content"
        if isinstance(message.content, str):
            self._add(message.role, [_text(message.content)], where, place)
        elif message.role == "system":
            self._add("system", _texts(message.content, place), where, place)
        elif message.role == "user":
            self._take_user(message.content, where)
        else:
            self._take_assistant(message.content, where)

    def _take_user(self, blocks: list[ContentBlock], where: str) -> None:
        """Results of calls are messages of their own, and come first."""
        if not blocks:
            raise InvalidRequest(
                f"{where}.content is empty; a user message must have at least one block",
                param=f"{where}.content",
            )
        placed = [(block, f"{where}.content[{n}]") for n, block in enumerate(blocks)]
        results = [(block, place) for block, place in placed if block.type == "tool_result"]
        pictures = [(self._take_result(block, place), place) for block, place in results]
        for parts, place in pictures:
            if parts:
                self._add("user", parts, where, place)
        for block, place in placed:
            if block.type != "tool_result":
                self._add("user", [_shown(block, place)], where, place)

    def _take_result(self, block: ContentBlock, where: str) -> list[dict[str, Any]]:
        """Returns its pictures, which follow as the user's: a tool's message holds text alone."""
        if block.tool_use_id is None:
            _missing(f"{where}.tool_use_id")
        given = block.content
        parts = [] if given is None else _parts(given, f"{where}.content")
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        self._messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
        self._sources.append((where, []))
        return [part for part in parts if part["type"] != "text"]

    def _take_assistant(self, blocks: list[ContentBlock], where: str) -> None:
        message = self._add("assistant", [], where)
        thoughts: list[str] = []
        for number, block in enumerate(blocks):
            place = f"{where}.content[{number}]"
            match block.type:
                case "thinking":
                    thoughts.append(block.thinking or "")
                case "redacted_thinking":
                    pass  # Only its author can read it.
                case "tool_use":
                    message.setdefault("tool_calls", []).append(_call(block, place))
                case _:
                    message["content"].append(_shown(block, place))
                    self._sources[-1][1].append(place)
        if thoughts:  # Perhaps with those of another turn, which this one became a part of.
            self._thoughts.setdefault(len(self._messages) - 1, []).extend(thoughts)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _texts(content: str | Sequence[ShownBlock | ContentBlock], where: str) -> list[dict[str, Any]]:
    """Text parts of a system prompt. Raises InvalidRequest for an image."""
    parts = _parts(content, where)
    if any(part["type"] != "text" for part in parts):
        raise InvalidRequest(f"{where} contains an image or a document; allowed: text", param=where)
    return parts


def _parts(content: str | Sequence[ShownBlock | ContentBlock], where: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [_text(content)]
    return [_shown(block, f"{where}[{number}]") for number, block in enumerate(content)]


def _shown(block: ShownBlock | ContentBlock, where: str) -> dict[str, Any]:
    """A block as a part of a chat's message."""
    match block.type:
        case "text":
            if block.text is None:
                _missing(f"{where}.text")
            return _text(block.text)
        case "image":
            return {"type": "image_url", "image_url": {"url": _picture(block.source, where)}}
        case "document":
            return {"type": "file", "file": _document(block, where)}
        case "search_result":
            return _text(_search_result(block, where))
        case "tool_reference":
            # Tools that are to be searched for are shown like all others.
            if block.tool_name is None:
                _missing(f"{where}.tool_name")
            return _text(block.tool_name)
    raise InvalidRequest(
        f"{where}.type is {clip(block.type)}; allowed: text, image, document, "
        "search_result, tool_reference, tool_use and thinking in assistant messages, tool_result "
        "in user messages",
        param=f"{where}.type",
        code="invalid_value",
    )


def _search_result(block: ShownBlock | ContentBlock, where: str) -> str:
    """The text of a search result: its source, title and contents. Nothing in it can be cited
    here."""
    for field in ("source", "title", "content"):
        value = getattr(block, field)
        if value is None:
            _missing(f"{where}.{field}")
        if not isinstance(value, list if field == "content" else str):
            kind = "a list of text blocks" if field == "content" else "a text"
            raise InvalidRequest(
                f"{where}.{field} of a search_result must be {kind}", param=f"{where}.{field}"
            )
    texts: list[str] = []
    found: Sequence[FoundText | ShownBlock | str] = block.content or ()
    for number, part in enumerate(found):
        if isinstance(part, str) or part.type != "text" or part.text is None:
            place = f"{where}.content[{number}]"
            raise InvalidRequest(f"{place} must be a text block", param=place)
        texts.append(part.text)
    return "\n".join([f"{block.title} ({block.source})", *texts])


def _picture(source: MediaContent | str | None, where: str) -> str:
    if isinstance(source, str):
        source = None
    if source is not None and source.type == "url" and source.url:
        return source.url
    if source is not None and source.type == "base64" and source.data and source.media_type:
        return f"data:{source.media_type};base64,{source.data}"
    raise InvalidRequest(
        f"{where}.source must be of type base64, with media_type and data, or url, with a url; "
        f"{STORES_NOTHING}",
        param=f"{where}.source",
        code="unsupported_value",
    )


def _document(block: ShownBlock | ContentBlock, where: str) -> dict[str, Any]:
    """A document as the file of a chat's part."""
    source = block.source
    if isinstance(source, MediaContent):
        match source.type:
            case "text" if source.data is not None:
                return {"filename": block.title, "text": source.data}
            case "base64" if source.data is not None:
                kind = source.media_type or ""
                return {"filename": block.title, "file_data": f"data:{kind};base64,{source.data}"}
            case "url" if source.url is not None:
                return {"filename": block.title, "file_url": source.url}
    raise InvalidRequest(
        f"{where}.source must be of type base64 (of a PDF or a text) or text, with data, or url, "
        f"with a url; {STORES_NOTHING}",
        param=f"{where}.source",
        code="unsupported_value",
    )


STORES_NOTHING = "this server stores no files"


def _call(block: ContentBlock, where: str) -> dict[str, Any]:
    for field in ("id", "name"):
        if getattr(block, field) is None:
            _missing(f"{where}.{field}")
    if not isinstance(block.input, dict):
        raise InvalidRequest(f"{where}.input must be an object", param=f"{where}.input")
    arguments = msgspec.json.encode(block.input).decode()
    return {
        "id": block.id,
        "type": "function",
        "function": {"name": block.name, "arguments": arguments},
    }


def _format(request: ConversationFields) -> ResponseFormat | None:
    given = None if request.output_config is None else request.output_config.format
    field = "output_config.format"
    if request.output_format is not None:
        if given is not None:
            raise InvalidRequest(
                "output_format and output_config.format are given; they mean the same: send only "
                "the latter",
                param="output_format",
            )
        given, field = request.output_format, "output_format"
    if given is None:
        return None
    if given.type != "json_schema" or given.schema is None:
        raise InvalidRequest(
            f"{field} has type {clip(given.type)}; allowed: json_schema, with a schema",
            param=field,
        )
    named = JsonSchemaFormat(name="answer", schema=given.schema)
    return ResponseFormat(type="json_schema", json_schema=named)


def _switch(request: ConversationFields) -> ThinkingSwitch | None:
    thinking = request.thinking
    if thinking is None:
        return None
    return ThinkingSwitch(
        type=msgspec.convert(thinking.type, Literal["enabled", "adaptive", "disabled"]),
        budget_tokens=budget_of(request),
    )


def _missing(where: str) -> NoReturn:
    raise InvalidRequest(f"{where} is missing", param=where, code="missing_required_parameter")


# Tools of Anthropic's, and the choice among them, as those of a chat.

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def tool_of(tool: InputTool, place: int) -> Tool:
    """place: its number in the request. Raises InvalidRequest."""
    if tool.type not in (None, "custom"):
        where = f"tools[{place}].type"
        raise InvalidRequest(
            f"{where} is {clip(tool.type)}, a tool that only Anthropic's servers or models "
            "provide; allowed: custom",
            param=where,
            code="unsupported_value",
        )
    return Tool(
        function=FunctionDefinition(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema,
            strict=tool.strict,
        )
    )


def choice_of(choice: ToolChoiceField | None) -> ToolChoice:
    """Raises InvalidRequest."""
    if choice is None:
        return None
    if choice.type == "tool" and choice.name is not None:
        return ChoiceObject(function=NamedFunction(name=choice.name))
    if choice.type not in _CHOICES:
        raise InvalidRequest(
            f"tool_choice has type {clip(choice.type)}"
            f"{' without a name' if choice.type == 'tool' else ''}; allowed: auto, any, none, and "
            "tool with a name",
            param="tool_choice.type",
            code="invalid_value",
        )
    return _CHOICES[choice.type]


def parallel_of(choice: ToolChoiceField | None) -> bool | None:
    """Whether an answer may hold several calls; None: nothing is said."""
    disabled = None if choice is None else choice.disable_parallel_tool_use
    return None if disabled is None else not disabled
