"""tool_choice: whether and how the model is made to call the tools in a request."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.chat.tools import (
    NO_TOOLS,
    OPENAI_TOOLS,
    Tool,
    ToolLimits,
    ToolUse,
    check_tools,
)
from penstock_gateway.http.errors import clip

CHOICES = ("auto", "required", "none")
MODES = ("auto", "required")
"""Modes of allowed_tools."""


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str


class AllowedTool(msgspec.Struct, frozen=True, kw_only=True):
    """One of allowed_tools. function: missing from those of other types, which are refused."""

    function: NamedFunction = NamedFunction(name="")
    type: str = "function"


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """mode: auto or required, of these tools; the others are as if they had not been sent."""

    tools: list[AllowedTool]
    mode: str = "auto"


class ChoiceObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tool_choice of type function: this function, and no other; of type allowed_tools: some of
    the tools."""

    type: str = "function"
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
    custom: Any = None
    """The tool of type custom, which is refused."""


ToolChoice = str | ChoiceObject | None


def tool_use(
    tools: list[Tool] | None,
    choice: ToolChoice,
    *,
    parallel: bool | None,
    auto_allowed: bool,
    limits: ToolLimits = OPENAI_TOOLS,
) -> ToolUse:
    """Raises InvalidRequest.  auto_allowed: whether the server lets the model choose."""
    if isinstance(choice, str) and choice not in CHOICES:
        raise _no_such_choice(choice)
    tools = tools or []
    check_tools(tools, limits)
    if not tools:
        if choice in (None, "none", "auto"):
            return NO_TOOLS
        raise InvalidRequest("tool_choice needs tools, and tools is empty", param="tool_choice")
    most = 1 if parallel is False else None
    if isinstance(choice, ChoiceObject):
        if choice.type != "allowed_tools":
            return ToolUse(tuple(tools), "named", _named(choice, tools), most)
        tools, choice = _allowed(choice, tools)
    if choice == "none":
        return NO_TOOLS
    if choice == "required":
        return ToolUse(tuple(tools), "required", most=most)
    if not auto_allowed:
        raise InvalidRequest(
            "tool_choice auto is disabled on this server (--no-enable-auto-tool-choice); "
            "allowed: required, none, or a named function",
            param="tool_choice",
        )
    return ToolUse(tuple(tools), "free", most=most)


def _named(choice: ChoiceObject, tools: list[Tool]) -> str:
    if choice.type != "function":
        raise _no_such_choice(f"an object with type {choice.type}")
    if choice.function is None:
        raise _missing("tool_choice.function")
    return _known(choice.function.name, tools, "tool_choice")


def _allowed(choice: ChoiceObject, tools: list[Tool]) -> tuple[list[Tool], str]:
    """The tools that are allowed, in the order of `tools`, and the mode: auto or required."""
    allowed = choice.allowed_tools
    if allowed is None:
        raise _missing("tool_choice.allowed_tools")
    if allowed.mode not in MODES:
        raise InvalidRequest(
            f"tool_choice.allowed_tools.mode is {clip(allowed.mode)}; allowed: {', '.join(MODES)}",
            param="tool_choice.allowed_tools.mode",
            code="invalid_value",
        )
    where = "tool_choice.allowed_tools.tools"
    if not allowed.tools:
        raise InvalidRequest(f"{where} is empty; it must have at least one entry", param=where)
    names = set()
    for index, tool in enumerate(allowed.tools):
        if tool.type != "function":
            raise InvalidRequest(
                f"{where}[{index}].type is {clip(tool.type)}; allowed: function",
                param=f"{where}[{index}].type",
            )
        names.add(_known(tool.function.name, tools, f"{where}[{index}]"))
    return [tool for tool in tools if tool.function.name in names], allowed.mode


def _known(name: str, tools: list[Tool], where: str) -> str:
    names = [tool.function.name for tool in tools]
    if name not in names:
        raise InvalidRequest(
            f"{where} names {clip(name)}, which is not in tools; allowed: {clip(names)}",
            param=where,
        )
    return name


def _missing(where: str) -> InvalidRequest:
    return InvalidRequest(f"{where} is missing", param=where, code="missing_required_parameter")


def _no_such_choice(given: str) -> InvalidRequest:
    return InvalidRequest(
        f"tool_choice is {clip(given)}; allowed: {', '.join(CHOICES)}, "
        '{"type": "function", "function": {"name": …}}, or {"type": "allowed_tools", …}',
        param="tool_choice",
        code="invalid_value",
    )
