"""Tools in the flat shape that responses have, and how chat has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.chat.tool_choice import (
    CHOICES,
    AllowedTool,
    AllowedTools,
    ChoiceObject,
    NamedFunction,
    ToolChoice,
)
from penstock_gateway.chat.tools import FunctionDefinition, Tool
from penstock_gateway.http.errors import clip
from penstock_gateway.request.decoding import convert


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """The only kind of tool. Fields as in FunctionDefinition."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_chat(self) -> Tool:
        return Tool(
            function=FunctionDefinition(
                name=self.name,
                description=self.description,
                parameters=self.parameters,
                strict=self.strict,
            )
        )


class AllowedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One of allowed_tools."""

    name: str
    type: str = "function"


class FunctionChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tool_choice of type function: this function, and no other; of type allowed_tools: those of
    the tools, in the mode auto or required.  server_label belongs to kinds that are refused."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[AllowedFunction] | None = None
    server_label: Any = None


class _Body(msgspec.Struct):
    tools: list[FunctionTool]


_SHAPE = msgspec.json.schema(FunctionTool)["$defs"]["FunctionTool"]

Tools = list[Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=_SHAPE)]]
"""FunctionTools, not decoded yet: of tools of other types, which have fields of their own, it is
the type that is wrong."""


def function_tools(given: list[dict[str, Any]] | None) -> list[FunctionTool]:
    """Raises InvalidRequest."""
    for place, tool in enumerate(given or ()):
        if tool.get("type", "function") != "function":
            where = f"tools[{place}].type"
            raise InvalidRequest(
                f"{where} is {clip(tool['type'])}, which is not supported; allowed: function",
                param=where,
                code="unsupported_value",
            )
    return convert({"tools": given or []}, _Body).tools


def chat_choice(choice: str | FunctionChoice | None) -> ToolChoice:
    """Raises InvalidRequest for one that can't be told in chat's terms."""
    if choice is None or choice in CHOICES:
        return choice if isinstance(choice, str) else None
    if not isinstance(choice, str) and choice.type == "allowed_tools":
        return _allowed(choice)
    if isinstance(choice, str) or choice.type != "function" or choice.name is None:
        shown = choice if isinstance(choice, str) else f"an object with type {choice.type}"
        raise InvalidRequest(
            f"tool_choice is {clip(shown)}; allowed: {', '.join(CHOICES)}, "
            '{"type": "function", "name": …}, or {"type": "allowed_tools", …}',
            param="tool_choice",
            code="invalid_value",
        )
    return ChoiceObject(function=NamedFunction(name=choice.name))


def _allowed(choice: FunctionChoice) -> ChoiceObject:
    tools = [
        AllowedTool(function=NamedFunction(name=tool.name), type=tool.type)
        for tool in choice.tools or ()
    ]
    mode = "auto" if choice.mode is None else choice.mode
    return ChoiceObject(type=choice.type, allowed_tools=AllowedTools(tools=tools, mode=mode))
