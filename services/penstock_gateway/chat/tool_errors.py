"""Reports an error in a call's schema as an error of the tool with that schema."""

from __future__ import annotations

import re

from penstock.errors import InvalidRequest
from penstock.structured_outputs import PARAM
from penstock_gateway.chat.tools import Tool, ToolUse
from penstock_gateway.request.structured_outputs import blame

_PLACE = re.compile(r"#?/items/anyOf/(\d+)(?:/properties/parameters)?")
"""Of a tool in the grammar of a call that must be one of several; see ToolUse.grammar."""


def blame_tool(error: InvalidRequest, use: ToolUse, given: list[Tool]) -> InvalidRequest:
    """The same error. given: the request's tools, of which `use` may have some only."""
    if error.param != PARAM:
        return error
    name = _name(error.message, use)
    if name is None:
        return blame(error, "tool_choice")
    index = next(at for at, tool in enumerate(given) if tool.function.name == name)
    where = f"tools[{index}].function.parameters"
    message = error.message.removeprefix(f"{PARAM}: ")
    message = _PLACE.sub("", message).replace("at : ", "")
    return InvalidRequest(f"{where}, the schema of {name}: {message}", param=where, code=error.code)


def _name(message: str, use: ToolUse) -> str | None:
    """Of the tool that the message is about; None: of none that it says."""
    if use.mode == "named":
        return use.name
    place = _PLACE.search(message)
    if place is not None and int(place[1]) < len(use.tools):
        return use.names[int(place[1])]
    return use.names[0] if len(use.tools) == 1 else None
