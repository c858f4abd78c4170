"""tool_choice: which of a request's tools an answer may call, or must."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.chat.custom_tools import CUSTOM, KINDS
from penstock_gateway.http.errors import clip

CHOICES = ("auto", "required", "none")
MODES = ("auto", "required")
"""Modes of allowed_tools."""


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str


class AllowedTool(msgspec.Struct, frozen=True, kw_only=True):
    """One of allowed_tools. function, custom: the tool, after its type."""

    function: NamedFunction = NamedFunction(name="")
    type: str = "function"
    custom: NamedFunction = NamedFunction(name="")

    @property
    def tool(self) -> str:
        """The tool's name."""
        return self.custom.name if self.type == CUSTOM else self.function.name


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """mode: auto or required, of these tools; the others are as if they had not been sent."""

    tools: list[AllowedTool]
    mode: str = "auto"


class ChoiceObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tool_choice of type function or custom: this tool, and no other; of type allowed_tools: some
    of the tools; of the type of one of the words, that word, as some clients write it. name: the
    function's, of clients that write it as for Responses."""

    type: str = "function"
    function: NamedFunction | None = None
    name: str | None = None
    allowed_tools: AllowedTools | None = None
    custom: NamedFunction | None = None


ToolChoice = str | ChoiceObject | None


def missing(where: str) -> InvalidRequest:
    """The error of a field that is needed."""
    return InvalidRequest(f"{where} is missing", param=where, code="missing_required_parameter")


def named_tool(choice: ChoiceObject, tools: Sequence[str]) -> str:
    """The name of the one tool that must be called. tools: names of the request's. Raises
    InvalidRequest."""
    if choice.type not in KINDS:
        raise no_such_choice(f"an object with type {choice.type}")
    chosen = choice.custom if choice.type == CUSTOM else choice.function
    name = choice.name if chosen is None else chosen.name
    if name is None:
        raise missing(f"tool_choice.{choice.type}")
    return _known(name, tools, "tool_choice")


def allowed_tools(choice: ChoiceObject, tools: Sequence[str]) -> tuple[set[str], str]:
    """Names of the tools that are allowed, and the mode: auto or required. tools: names of the
    request's. Raises InvalidRequest."""
    allowed = choice.allowed_tools
    if allowed is None:
        raise missing("tool_choice.allowed_tools")
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
        if tool.type not in KINDS:
            raise InvalidRequest(
                f"{where}[{index}].type is {clip(tool.type)}; allowed: {', '.join(KINDS)}",
                param=f"{where}[{index}].type",
            )
        names.add(_known(tool.tool, tools, f"{where}[{index}]"))
    return names, allowed.mode


def _known(name: str, tools: Sequence[str], where: str) -> str:
    if name not in tools:
        raise InvalidRequest(
            f"{where} names {clip(name)}, which is not in tools; allowed: {clip([*tools])}",
            param=where,
        )
    return name


def no_such_choice(given: str) -> InvalidRequest:
    """The error of a choice that none of the words or objects is."""
    return InvalidRequest(
        f"tool_choice is {clip(given)}; allowed: {', '.join(CHOICES)}, "
        '{"type": "function", "function": {"name": …}}, {"type": "custom", "custom": {"name": …}}, '
        'or {"type": "allowed_tools", …}',
        param="tool_choice",
        code="invalid_value",
    )
