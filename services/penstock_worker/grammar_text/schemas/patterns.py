"""Regular expressions as llguidance can be trusted with them.

Of a class that has all control characters but not the quotation mark or the backslash, such as
`[^"]`, it takes the escapes of these two in a JSON string for members.  Without NUL it doesn't.
"""

from __future__ import annotations

from typing import Any

NO_NUL = r"\x00"


def with_careful_patterns(node: dict[str, Any]) -> dict[str, Any]:
    """A schema whose own patterns are careful."""
    if "pattern" in node:
        node["pattern"] = careful(node["pattern"])
    if "patternProperties" in node:
        node["patternProperties"] = {
            careful(pattern): each for pattern, each in node["patternProperties"].items()
        }
    return node


def careful(pattern: str) -> str:
    """The expression, with no negated class that has NUL."""
    made: list[str] = []
    at, within = 0, False
    while at < len(pattern):
        if pattern[at] == "\\":
            made.append(pattern[at : at + 2])
            at += 2
        elif not within and pattern.startswith("[", at):
            opening, at = _opening(pattern, at)
            made.append(opening)
            within = True
        else:
            within = within and pattern[at] != "]"
            made.append(pattern[at])
            at += 1
    return "".join(made)


def _opening(pattern: str, at: int) -> tuple[str, int]:
    """How the class that begins there begins, and where that ends. A bracket that comes first
    doesn't close it."""
    opening, after = ("[^" + NO_NUL, at + 2) if pattern.startswith("[^", at) else ("[", at + 1)
    if pattern.startswith("]", after):
        return opening + r"\]", after + 1
    return opening, after
