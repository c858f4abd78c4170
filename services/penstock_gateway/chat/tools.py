"""The tools in a request, tool_choice, and the form of an answer that must call a tool."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.config.gateway_settings import ToolStrictLevel
from penstock.errors import InvalidRequest
from penstock.parsing.forced_grammar import PLACE, forced_tag, place_of
from penstock.parsing.format import CallFormat
from penstock.parsing.nodes import Node, TextInput, arguments_of, sequence, text_node
from penstock.request.structured_outputs import StructuredOutputs
from penstock_gateway.chat.custom_tools import (
    CUSTOM,
    KINDS,
    CustomDefinition,
    ToolGrammar,
    check_format,
    described,
    parameters,
    text_input,
)
from penstock_gateway.chat.tool_choice import (
    CHOICES,
    ChoiceObject,
    ToolChoice,
    allowed_tools,
    missing,
    named_tool,
    no_such_choice,
)
from penstock_gateway.http.errors import clip

MAX_TOOLS_BYTES = 262_144
"""Bytes of all of a request's tools together, as JSON."""
_NAME = re.compile(r"[a-zA-Z0-9_.-]+")
_OTHER_TYPES = frozenset({"array", "string", "integer", "number", "boolean", "null"})


class ToolLimits(NamedTuple):
    """How many tools a request may have, and characters their names. Beyond them, the bytes of all
    tools and the context are what counts."""

    tools: int
    name: int


ANY_TOOLS = ToolLimits(4096, 128)
"""Names as long as Anthropic's; agents with several MCP servers have some hundred tools."""
OPENAI_TOOLS = ANY_TOOLS
"""More than OpenAI's own 128 and 64: the same agents ask here."""


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """parameters: a JSON schema of the arguments object; None: there are no arguments.
    strict: calls keep to the schema. Those that tool_choice forces do so anyway.
    Fields that are unknown here are skipped."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomFunction(FunctionDefinition, frozen=True, kw_only=True):
    """What stands for a custom tool. No client can send it.

    grammar: what the input is held to.
    """

    grammar: ToolGrammar | None = None


def function_of(name: str, description: str | None, grammar: ToolGrammar | None) -> CustomFunction:
    """The function that stands for a custom tool."""
    return CustomFunction(
        name=name,
        description=described(description, grammar),
        parameters=parameters(grammar),
        strict=grammar is not None or None,
        grammar=grammar,
    )


NO_FUNCTION = FunctionDefinition(name="")
"""The function of a tool that has none, which is refused."""


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function, or a custom tool, for which a function stands. Fields that are unknown here are
    skipped.

    name, and the next three: the function's, of clients that write tools as for Responses.
    """

    function: FunctionDefinition = NO_FUNCTION
    type: str = "function"
    custom: CustomDefinition | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def __post_init__(self) -> None:
        if self.type == CUSTOM and self.custom is not None:
            custom = self.custom
            grammar = None if custom.format is None else custom.format.grammar
            stands = function_of(custom.name, custom.description, grammar)
            msgspec.structs.force_setattr(self, "function", stands)
        if self.name is None or self.function is not NO_FUNCTION or self.type != "function":
            return
        function = FunctionDefinition(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            strict=self.strict,
        )
        msgspec.structs.force_setattr(self, "function", function)
        for field in ("name", "description", "parameters", "strict"):
            msgspec.structs.force_setattr(self, field, None)

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates expect it, with all that they look at: many refuse a
        conversation where a function has no description or no properties."""
        given = self.function.parameters or {"type": "object"}
        function = {
            "name": self.function.name,
            "description": self.function.description or "",
            "parameters": given if "properties" in given else {**given, "properties": {}},
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools an answer may call, and whether it must."""

    tools: tuple[Tool, ...]
    """Tools that the model is shown; none where it may not call any."""
    mode: Literal["off", "free", "required", "named"]
    """free: it may call them.  required: it must.  named: it must call `name`."""
    name: str = ""
    most: int | None = None
    """Calls that an answer may hold; None: any number."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.function.name for tool in self.tools)

    @property
    def custom(self) -> frozenset[str]:
        """Names of custom tools."""
        return frozenset(tool.function.name for tool in self.tools if tool.type == CUSTOM)

    @property
    def schemas(self) -> dict[str, Any]:
        """Schemas of the arguments as the client gave them, by the tool's name."""
        return {tool.function.name: tool.function.parameters for tool in self.tools}

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """Tools that an answer may call."""
        if self.mode != "named":
            return self.tools
        return tuple(tool for tool in self.tools if tool.function.name == self.name)

    @property
    def callable_schemas(self) -> dict[str, Any]:
        """Schemas that a call's arguments must satisfy, or TextInput, by the name of each tool that
        may be called."""
        return {tool.function.name: held_arguments(tool) for tool in self.callable_tools}

    def held(self, level: ToolStrictLevel) -> dict[str, Any]:
        """What calls are held to that the model chooses to make: schemas of their arguments, by
        name; None where these are any. Empty where no call is held to anything."""
        if self.mode != "free":
            return {}
        strict = {tool.function.name for tool in self.tools if tool.function.strict}
        if level == "auto" and not strict:
            return {}
        every = level == "parameter"
        return {
            name: schema if every or name in strict else None
            for name, schema in self.callable_schemas.items()
        }

    def for_template(self) -> list[dict[str, Any]] | None:
        return [tool.for_template() for tool in self.tools] or None

    def own_grammar(self, form: CallFormat, template: str) -> dict[str, Any] | None:
        """What the answer must look like so that it is the calls that are asked for, in the model's
        own format, as a part of a structural tag. None where there is nothing to force, or the
        format can't be held to it."""
        if self.mode not in ("named", "required"):
            return None
        most = 1 if self.mode == "named" else self.most
        return forced_tag(form, template, self.callable_schemas, most)

    def grammar(self) -> StructuredOutputs | None:
        """The grammar of the calls that are asked for, as JSON: an array of calls, or the arguments
        of the one tool that is named. None where no call is forced."""
        if self.mode == "named":
            tool = next(tool for tool in self.tools if tool.function.name == self.name)
            if isinstance(held := held_arguments(tool), TextInput):
                return StructuredOutputs(structural_tag={"format": held.node()})
            return StructuredOutputs(json=held)
        if self.mode != "required":
            return None
        if any(isinstance(each, TextInput) for each in self.callable_schemas.values()):
            return StructuredOutputs(structural_tag={"format": self._array()})
        items = [
            call_schema(tool, f"#/items/anyOf/{index}/properties/parameters")
            for index, tool in enumerate(self.tools)
        ]
        schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": items}}
        if self.most is not None:
            schema["maxItems"] = self.most
        return StructuredOutputs(json=schema)

    def _array(self) -> Node:
        """`grammar` where a tool's arguments have no schema."""
        tags = [
            {
                "type": "tag",
                "begin": f'{{"name": "{name}", "parameters": ',
                "content": arguments_of(held),
                "end": "}",
                PLACE: place_of(index),
            }
            for index, (name, held) in enumerate(self.callable_schemas.items())
        ]
        calls = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": ", ",
            "at_least_one": True,
            "stop_after_first": self.most == 1,
        }
        return sequence(text_node("["), calls, text_node("]"))


NO_TOOLS = ToolUse((), "off")


def check_tools(tools: list[Tool], limits: ToolLimits) -> None:
    """Raises InvalidRequest."""
    if len(tools) > limits.tools:
        raise InvalidRequest(
            f"tools has {len(tools)} entries; at most {limits.tools} are allowed", param="tools"
        )
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        name, where = tool.function.name, f"tools[{index}]"
        if tool.type not in KINDS:
            raise InvalidRequest(
                f"{where}.type is {clip(tool.type)}; allowed: {', '.join(KINDS)}",
                param=f"{where}.type",
            )
        where = f"{where}.{tool.type}"
        if tool.function is NO_FUNCTION or (tool.type == CUSTOM and tool.custom is None):
            raise missing(where)
        if tool.custom is not None and tool.type == CUSTOM:
            check_format(tool.custom.format, f"{where}.format")
        if len(name) > limits.name or _NAME.fullmatch(name) is None:
            raise InvalidRequest(
                f"{where}.name is {clip(name)}; it must have 1 to {limits.name} letters, "
                "digits, underscores, dots and dashes",
                param=f"{where}.name",
            )
        if name in seen:
            raise InvalidRequest(
                f"{where}.name is {clip(name)}, which another tool already uses",
                param=f"{where}.name",
            )
        seen.add(name)
        _check_parameters(tool.function, f"{where}.parameters")
    size = len(_encoded(tools))
    if size > MAX_TOOLS_BYTES:
        raise InvalidRequest(
            f"tools has {size} bytes; at most {MAX_TOOLS_BYTES} are allowed", param="tools"
        )


def _check_parameters(function: FunctionDefinition, where: str) -> None:
    """A call's arguments are an object: what allows no object describes no call."""
    given = (function.parameters or {}).get("type")
    types = given if isinstance(given, list) else [given]
    if types and all(isinstance(each, str) and each in _OTHER_TYPES for each in types):
        raise InvalidRequest(
            f"{where}, the schema of {function.name}, has type {clip(given)}; a call's arguments "
            "are an object; allowed: object",
            param=where,
        )


def _encoded(tools: list[Tool]) -> bytes:
    try:
        return msgspec.json.encode(tools)
    except (RecursionError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"tools can't be read: {error}", param="tools") from None


def held_arguments(tool: Tool) -> dict[str, Any] | TextInput:
    """What a call's arguments are held to: a schema, or a grammar of their only text."""
    function = tool.function
    held = text_input(function.grammar) if isinstance(function, CustomFunction) else None
    return held or parameters_of(tool)


def parameters_of(tool: Tool) -> dict[str, Any]:
    """The schema of a call's arguments."""
    given = tool.function.parameters
    if not given:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    # A call's arguments are an object, whatever else the schema says.
    or_other = "type" not in given or isinstance(given["type"], list)
    return {**given, "type": "object"} if or_other else given


def call_schema(
    tool: Tool, place: str, keys: tuple[str, str] = ("name", "parameters")
) -> dict[str, Any]:
    """The schema of an object that calls the tool.

    place: where its arguments' schema stands in the whole.  keys: of its name and its arguments.
    """
    name, arguments = keys
    return {
        "type": "object",
        "properties": {
            name: {"const": tool.function.name},
            arguments: _moved(parameters_of(tool), place),
        },
        "required": [name, arguments],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """The schema with its own references pointing to where it is now a part of another."""
    if isinstance(schema, dict):
        return {
            key: place + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, place)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    return schema


def tool_use(
    tools: list[Tool] | None,
    choice: ToolChoice,
    *,
    parallel: bool | None,
    auto_allowed: bool,
    limits: ToolLimits = OPENAI_TOOLS,
) -> ToolUse:
    """Raises InvalidRequest.  auto_allowed: whether the server lets the model choose. The choice
    `any` is Mistral's word for required."""
    if isinstance(choice, ChoiceObject) and choice == ChoiceObject(type=choice.type):
        choice = choice.type if choice.type in (*CHOICES, "any") else choice
    choice = "required" if choice == "any" else choice
    if isinstance(choice, str) and choice not in CHOICES:
        raise no_such_choice(choice)
    if not tools:
        if choice in (None, "none", "auto"):
            return NO_TOOLS
        raise InvalidRequest("tool_choice needs tools, and tools is empty", param="tool_choice")
    check_tools(tools, limits)
    most = 1 if parallel is False else None
    if isinstance(choice, ChoiceObject):
        names = [tool.function.name for tool in tools]
        if choice.type != "allowed_tools":
            return ToolUse(tuple(tools), "named", named_tool(choice, names), most)
        allowed, choice = allowed_tools(choice, names)
        tools = [tool for tool in tools if tool.function.name in allowed]
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
