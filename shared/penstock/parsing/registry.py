"""Parsers by name. Built-in ones are imported when they are used; plug-ins come by entry point."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from penstock.errors import StartupError
from penstock.parsing.interface import ReasoningParser, ToolParser
from penstock.plugins import REASONING_PARSERS, TOOL_PARSERS, named_plugin

TOOLS = {
    "hermes": "penstock.parsing.hermes:HermesCalls",
    "llama3_json": "penstock.parsing.llama3_json:Llama3Calls",
    "mistral": "penstock.parsing.mistral:MistralCalls",
    "json": "penstock.parsing.json_calls:JsonCalls",
}
REASONING = {
    "qwen3": "penstock.parsing.thinking:ThinkBlocks",
    "deepseek_r1": "penstock.parsing.thinking:DeepSeekR1",
}


@cache
def tool_parser(name: str, template: str) -> type[ToolParser]:
    """template: the chat template's text, by which `auto` decides. Raises StartupError for a name
    that is none, or a plug-in that can't be used."""
    if name == "auto":
        name = _tools_of(template)
    return _load(name, TOOLS, TOOL_PARSERS, ToolParser, "--tool-call-parser")


@cache
def reasoning_parser(name: str, template: str) -> type[ReasoningParser] | None:
    """The same for reasoning; None where the answer is all content."""
    if name == "auto":
        name = "qwen3" if "</think>" in template else "none"
    if name in ("none", ""):
        return None
    return _load(name, REASONING, REASONING_PARSERS, ReasoningParser, "--reasoning-parser")


def _tools_of(template: str) -> str:
    """How a model writes calls can be read off how its template writes them back to it."""
    if "<tool_call>" in template:
        return "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<|python_tag|>" in template or "Environment: ipython" in template:
        return "llama3_json"
    return "json"


def _load(name: str, built_in: dict[str, str], group: str, kind: type[Any], flag: str) -> type[Any]:
    place = built_in.get(name)
    if place is not None:
        module, _, attribute = place.partition(":")
        found: object = getattr(importlib.import_module(module), attribute)
    else:
        found = named_plugin(group, name, flag, ("auto", *built_in)).value
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise StartupError(f"{flag} {name}: the plug-in's {found!r} is not a {kind.__name__}")
    return found
