"""Reports an error in a call's schema as an error of the tool with that schema."""

from __future__ import annotations

import re

from penstock.errors import InvalidRequest
from penstock.request.structured_outputs import PARAM
from penstock_gateway.chat.tools import Tool, ToolUse
from penstock_gateway.request.structured_outputs import blame

_TAG = r"/<tool>(?:/(?P<tool>\d+)|: at /anyOf/(?P<either>\d+)(?:/properties/\w+)?)?"
"""Pattern for the place, in a message, of a tool whose calls are in the model's own format, or,
where these have no marks, of an object that is one of several: there is one for each tool, then for
each with another key, and so on."""
_PLACE = re.compile(rf"{_TAG}|#?/items/anyOf/(?P<item>\d+)(?:/properties/parameters)?")
"""Pattern for that place, or for a tool's where a call that must be one of several is JSON; see
ToolUse.grammar."""


def blame_tool(
    error: InvalidRequest, use: ToolUse, given: list[Tool], field: str | None = "tool_choice"
) -> InvalidRequest:
    """The error, which names the tool's schema, or the field that asks for the answer's form, where
    it is about them. given: the request's tools, of which `use` may have some only. field: what
    else the answer's form is asked for by."""
    if error.param != PARAM:
        return error
    name = _name(error.message, use)
    if name is None:
        in_tools = use.mode == "free" and re.search(_TAG, error.message) is not None
        return blame(error, "tools" if in_tools else field)
    index = next(at for at, tool in enumerate(given) if tool.function.name == name)
    where = f"tools[{index}].function.parameters"
    message = error.message.removeprefix(f"{PARAM}: ")
    message = _PLACE.sub("", message).replace("at : ", "")
    return InvalidRequest(f"{where}, the schema of {name}: {message}", param=where, code=error.code)


def _name(message: str, use: ToolUse) -> str | None:
    """Name of the tool that the message is about; None: it doesn't say which."""
    if use.mode == "named":
        return use.name
    forced = use.mode == "required"
    place = (_PLACE if forced else re.compile(_TAG)).search(message)
    found = {} if place is None else place.groupdict()
    if found.get("either"):
        return use.names[int(found["either"]) % len(use.names)]
    index = int(found.get("tool") or found.get("item") or -1)
    if 0 <= index < len(use.tools):
        return use.names[index]
    return use.names[0] if forced and len(use.tools) == 1 else None
