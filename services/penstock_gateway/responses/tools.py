"""The tools of a response, and how chat has them: as functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from penstock.errors import Field, InvalidRequest
from penstock.process import logs
from penstock_gateway.chat.custom_tools import check_grammar
from penstock_gateway.chat.tool_choice import (
    CHOICES,
    AllowedTool,
    AllowedTools,
    ChoiceObject,
    NamedFunction,
    ToolChoice,
)
from penstock_gateway.chat.tools import ANY_TOOLS, OPENAI_TOOLS, Tool, ToolLimits
from penstock_gateway.http.errors import clip
from penstock_gateway.request.decoding import convert
from penstock_gateway.responses.tool_kinds import BY_TOOL, NamedTool, ToolKind

log = logs.get(__name__)

NAMESPACE = "namespace"
LEFT_OUT = frozenset(
    {
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "mcp",
        "programmatic_tool_calling",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Types of tools that OpenAI's own servers or models have. Agents send them with all others, and
the model does without."""
_TOLD: set[str] = set()
"""Types of left-out tools that are logged already."""


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """Fields as in FunctionDefinition."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class GrammarFormat(msgspec.Struct, frozen=True, kw_only=True):
    """type: text or grammar, which has a syntax, lark or regex, and a definition."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class CustomTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool whose input is a text."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: GrammarFormat | None = None


class NamespaceTool(msgspec.Struct, frozen=True, kw_only=True):
    """Functions and custom tools under a common name."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: list[dict[str, Any]]


class ActionTool(msgspec.Struct, frozen=True, kw_only=True):
    """local_shell, shell or apply_patch."""

    type: str


_STRUCTS: dict[str, type[msgspec.Struct]] = {
    "function": FunctionTool,
    "custom": CustomTool,
    NAMESPACE: NamespaceTool,
}


class AllowedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One of allowed_tools."""

    name: str | None = None
    type: str = "function"
    namespace: str | None = None


class FunctionChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tool_choice of type function or custom: this tool, and no other; of type allowed_tools: those
    of the tools, in the mode auto or required.  server_label belongs to kinds that are refused."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[AllowedFunction] | None = None
    server_label: Any = None


_FUNCTION = msgspec.json.schema(FunctionTool)["$defs"]["FunctionTool"]
_OTHER = {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
Tools = list[
    Annotated[dict[str, Any], msgspec.Meta(extra_json_schema={"anyOf": [_FUNCTION, _OTHER]})]
]
"""Tools, not decoded yet: each type has fields of its own."""


class CalledAs(msgspec.Struct, frozen=True, array_like=True):
    """A tool, as data."""

    kind: str
    """Its type among the request's tools."""
    name: str
    namespace: str | None

    @property
    def tool(self) -> NamedTool:
        return NamedTool(BY_TOOL[self.kind], self.name, self.namespace)


class ResponseTools:
    """A request's tools, as functions of a chat.

    given: as they were sent.  more: those that items of the conversation bring, which may come
    several times.  Raises InvalidRequest.
    """

    def __init__(
        self, given: list[dict[str, Any]] | None, more: Iterable[dict[str, Any]] = ()
    ) -> None:
        self.chat: list[Tool] = []
        self.places: list[str] = []
        """The place in the request of each tool of `chat`."""
        self.shown: list[Any] = []
        """The tools that count, as the response shows them."""
        self.limits: ToolLimits = OPENAI_TOOLS
        self._left_out: set[str] = set()
        self.called: dict[str, CalledAs] = {}
        """The tools that functions' names stand for."""
        for place, tool in enumerate(given or ()):
            self._take(tool, f"tools[{place}]", again=False)
        for tool in more:
            self._take(tool, "input", again=True)

    def function_of(self, name: str, namespace: str | None) -> str:
        """The name of the function that stands for a tool."""
        return name if namespace is None else _within(namespace, name)

    def choice(self, choice: str | FunctionChoice | None) -> ToolChoice:
        """Returns the choice in chat's terms. Raises InvalidRequest for one that has none."""
        if choice == "required" and self._left_out and not self.chat:
            raise InvalidRequest(
                "tool_choice is required, but of the tools there are only such as this server "
                f"hasn't: {', '.join(sorted(self._left_out))}",
                param="tool_choice",
            )
        if choice is None or choice in CHOICES:
            return choice if isinstance(choice, str) else None
        if not isinstance(choice, str) and choice.type == "allowed_tools":
            return self._allowed(choice)
        name = None if isinstance(choice, str) else self._chosen(choice)
        if name is None:
            shown = choice if isinstance(choice, str) else f"an object with type {choice.type}"
            raise InvalidRequest(
                f"tool_choice is {clip(shown)}; allowed: {', '.join(CHOICES)}, "
                '{"type": "function", "name": …}, {"type": "custom", "name": …}, or '
                '{"type": "allowed_tools", …}',
                param="tool_choice",
                code="invalid_value",
            )
        return ChoiceObject(function=NamedFunction(name=name))

    def _chosen(self, choice: FunctionChoice | AllowedFunction) -> str | None:
        """The function's name; None where it is none of the kinds that can be chosen."""
        if choice.type in ("function", "custom"):
            return choice.name and self.function_of(choice.name, choice.namespace)
        return choice.type if choice.type in BY_TOOL else None

    def _allowed(self, choice: FunctionChoice) -> ChoiceObject:
        given = choice.tools or []
        kept = [tool for tool in given if tool.type not in LEFT_OUT]
        if given and not kept:
            raise InvalidRequest(
                f"tool_choice.tools has none that this server offers, but "
                f"{', '.join(sorted({tool.type for tool in given}))}",
                param="tool_choice.tools",
            )
        tools = []
        for tool in kept:
            name = self._chosen(tool)
            # A type that is none of these is refused by chat, which names it.
            kind = "function" if name is not None else tool.type
            tools.append(
                AllowedTool(function=NamedFunction(name=name or tool.name or ""), type=kind)
            )
        mode = "auto" if choice.mode is None else choice.mode
        return ChoiceObject(type=choice.type, allowed_tools=AllowedTools(tools=tools, mode=mode))

    def _take(self, tool: dict[str, Any], where: str, *, again: bool) -> None:
        type = _type_of(tool, where)
        if type in LEFT_OUT or _runs_elsewhere(tool):
            _tell(type)
            self._left_out.add(type)
            return
        checked = _checked(tool, _STRUCTS.get(type, ActionTool), where)
        self.shown.append(checked)
        if type != NAMESPACE:
            name = tool["name"] if "name" in checked.__struct_fields__ else type
            self._add(BY_TOOL[type], name, tool, where, again=again)
            return
        self.limits = ANY_TOOLS  # OpenAI counts those of a namespace apart.
        words = tool.get("description")
        for place, one in enumerate(tool["tools"]):
            inside = f"{where}.tools[{place}]"
            kind = _type_of(one, inside, ("function", "custom"))
            _checked(one, _STRUCTS[kind], inside)
            if words and not place:
                # A namespace has no other place in the prompt.
                one = {**one, "description": f"{words}\n\n{one.get('description') or ''}".strip()}
            self._add(BY_TOOL[kind], one["name"], one, inside, again=again, within=tool["name"])

    def _add(
        self,
        kind: ToolKind,
        name: str,
        tool: dict[str, Any],
        where: str,
        *,
        again: bool,
        within: str | None = None,
    ) -> None:
        function = self.function_of(name, within)
        if again and function in self.called:
            return
        if (grammar := kind.grammar(tool)) is not None:
            check_grammar(grammar, f"{where}.format")
        self.called[function] = CalledAs(kind.tool, name, within)
        self.chat.append(Tool(function=kind.definition(function, tool)))
        self.places.append(where)


def _type_of(
    tool: dict[str, Any], where: str, allowed: tuple[str, ...] = (*BY_TOOL, NAMESPACE)
) -> str:
    type = tool.get("type")
    if type is None:
        raise InvalidRequest(
            f"{where}.type is missing",
            param=f"{where}.type",
            code="missing_required_parameter",
        )
    top = NAMESPACE in allowed
    if not isinstance(type, str) or not (type in allowed or (top and type in LEFT_OUT)):
        also = f"; left out without an error: {', '.join(sorted(LEFT_OUT))}" if top else ""
        raise InvalidRequest(
            f"{where}.type is {clip(type)}, which is not supported; allowed: "
            f"{', '.join(allowed)}{also}",
            param=f"{where}.type",
            code="unsupported_value",
        )
    return type


def _runs_elsewhere(tool: dict[str, Any]) -> bool:
    """Whether it is a shell in a container of OpenAI's."""
    environment = tool.get("environment")
    return isinstance(environment, dict) and environment.get("type") != "local"


def _tell(type: str) -> None:
    """Once of each type: an agent sends it with every request."""
    if type not in _TOLD:
        _TOLD.add(type)
        log.info("tools of a type that this server hasn't are left out of requests", type=type)


def _checked(tool: dict[str, Any], struct: type[msgspec.Struct], where: str) -> msgspec.Struct:
    try:
        return convert(tool, struct)
    except InvalidRequest as error:
        if error.param is not None:
            raise error.renamed(lambda path: f"{where}.{path}") from None
        complaint = error.message.removeprefix("the request")
        raise InvalidRequest(Field(where), complaint, param=where, code=error.code) from None


def _within(namespace: str, name: str) -> str:
    """Functions have no namespaces: their names begin with it."""
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
