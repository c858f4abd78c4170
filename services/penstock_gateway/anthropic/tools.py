"""Tools of Anthropic's, and the choice among them, as those of a chat."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock_gateway.anthropic.request import InputTool, ToolChoiceField
from penstock_gateway.chat.tool_choice import ChoiceObject, NamedFunction, ToolChoice
from penstock_gateway.chat.tools import FunctionDefinition, Tool
from penstock_gateway.http.errors import clip

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
