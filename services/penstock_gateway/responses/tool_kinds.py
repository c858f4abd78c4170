"""Kinds of tools that a response may call: how the model sees each, as a function, and how it
sees a call in a conversation's history.

A tool that the client runs can be shown as a function, whatever OpenAI's API calls it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.chat.custom_tools import ToolGrammar, history_arguments
from penstock_gateway.chat.tools import FunctionDefinition, function_of

if TYPE_CHECKING:
    from penstock_gateway.responses.input_items import InputItem


class ToolKind(ABC):
    """tool: its type among the tools.  call, output: the types of its items."""

    tool: str
    call: str
    output: str

    @abstractmethod
    def definition(self, name: str, tool: dict[str, Any]) -> FunctionDefinition:
        """The function that the model is shown. tool: checked, as it was given."""

    @abstractmethod
    def arguments(self, item: InputItem, where: str) -> str:
        """Arguments of that function, as JSON, in a call of the history. Raises InvalidRequest."""

    def grammar(self, tool: dict[str, Any]) -> ToolGrammar | None:
        """What a call's input is held to; None: nothing."""
        return None

    def name(self, item: InputItem, where: str) -> str:
        """The tool that a call of the history is of. Raises InvalidRequest."""
        return needed(item.name, f"{where}.name")


class FunctionKind(ToolKind):
    tool, call, output = "function", "function_call", "function_call_output"

    def definition(self, name: str, tool: dict[str, Any]) -> FunctionDefinition:
        given = {key: tool.get(key) for key in ("description", "parameters", "strict")}
        return FunctionDefinition(name=name, **given)

    def arguments(self, item: InputItem, where: str) -> str:
        given = needed(item.arguments, f"{where}.arguments")
        if not isinstance(given, str):
            raise InvalidRequest(
                f"{where}.arguments must be a text that holds JSON", param=f"{where}.arguments"
            )
        return given


class CustomKind(ToolKind):
    """A custom tool, whose input is any text: the model is shown a function with one string."""

    tool, call, output = "custom", "custom_tool_call", "custom_tool_call_output"

    def definition(self, name: str, tool: dict[str, Any]) -> FunctionDefinition:
        return function_of(name, tool.get("description"), self.grammar(tool))

    def grammar(self, tool: dict[str, Any]) -> ToolGrammar | None:
        shape = tool.get("format") or {}
        if shape.get("type") != "grammar":
            return None
        return ToolGrammar(
            syntax=shape.get("syntax") or "", definition=shape.get("definition") or ""
        )

    def arguments(self, item: InputItem, where: str) -> str:
        return history_arguments(needed(item.input, f"{where}.input"))


@dataclass(frozen=True)
class ActionKind(ToolKind):
    """A tool whose calls hold an object of their own, which its makers defined. prefix: of its
    items' ids.  key: the object's name in them.  always: what it has whether the model says it or
    not."""

    tool: str
    call: str
    output: str
    prefix: str
    key: str
    description: str
    properties: dict[str, Any]
    required: list[str]
    always: dict[str, Any] = field(default_factory=dict)

    def definition(self, name: str, tool: dict[str, Any]) -> FunctionDefinition:
        parameters = {
            "type": "object",
            "properties": self.properties,
            "required": self.required,
            "additionalProperties": False,
        }
        return FunctionDefinition(name=name, description=self.description, parameters=parameters)

    def arguments(self, item: InputItem, where: str) -> str:
        action = needed(getattr(item, self.key), f"{where}.{self.key}")
        if not isinstance(action, dict):
            raise InvalidRequest(f"{where}.{self.key} must be an object", param=where)
        return as_json({key: action[key] for key in self.properties if action.get(key) is not None})

    def name(self, item: InputItem, where: str) -> str:
        return self.tool


_LINES = {"type": "array", "items": {"type": "string"}}
FUNCTION, CUSTOM = FunctionKind(), CustomKind()
KINDS: tuple[ToolKind, ...] = (
    FUNCTION,
    CUSTOM,
    ActionKind(
        tool="local_shell",
        call="local_shell_call",
        output="local_shell_call_output",
        prefix="lsh",
        key="action",
        description="Runs a command on the user's machine, and returns what it prints.",
        properties={
            "command": {**_LINES, "description": "The program and its arguments."},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        required=["command"],
        always={"type": "exec", "command": [], "env": {}},
    ),
    ActionKind(
        tool="shell",
        call="shell_call",
        output="shell_call_output",
        prefix="sh",
        key="action",
        description="Runs commands in a shell on the user's machine, and returns what they print.",
        properties={
            "commands": {**_LINES, "description": "Each is run by itself."},
            "timeout_ms": {"type": "integer"},
            "max_output_length": {"type": "integer", "description": "Characters."},
        },
        required=["commands"],
        always={"commands": [], "timeout_ms": None, "max_output_length": None},
    ),
    ActionKind(
        tool="apply_patch",
        call="apply_patch_call",
        output="apply_patch_call_output",
        prefix="apc",
        key="operation",
        description=(
            "Creates, changes or deletes a file. diff: lines that begin with a space are kept, "
            "with - removed, with + added; each place in the file begins with a line @@. All lines "
            "of a new file begin with +. A file that is deleted needs no diff."
        ),
        properties={
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": {"type": "string"},
            "diff": {"type": "string"},
        },
        required=["type", "path"],
        always={"type": "update_file", "path": "", "diff": ""},
    ),
)
BY_TOOL = {kind.tool: kind for kind in KINDS}
BY_CALL = {kind.call: kind for kind in KINDS}
OUTPUTS = frozenset(kind.output for kind in KINDS)


@dataclass(frozen=True, slots=True)
class NamedTool:
    """What a function's name stands for, in the client's words."""

    kind: ToolKind
    name: str
    namespace: str | None = None


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def needed(value: Any, where: str) -> Any:
    """Raises InvalidRequest where there is none."""
    if value is None:
        missing(where)
    return value


def missing(where: str) -> NoReturn:
    """Raises InvalidRequest."""
    raise InvalidRequest(f"{where} is missing", param=where, code="missing_required_parameter")
