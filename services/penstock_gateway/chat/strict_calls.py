"""Calls that the model chooses to make, held to the schemas of tools that are strict."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from penstock import logs
from penstock.parsing.forced_grammar import forced_tag, written_by
from penstock.parsing.format import AnyFormat, ChannelFormat
from penstock.parsing.held_calls import unheld
from penstock.parsing.registry import ToolFormat
from penstock.structured_outputs import StructuredOutputs
from penstock_gateway.chat.answer_grammar import answer_grammar, free_answer
from penstock_gateway.chat.tools import ToolUse

log = logs.get(__name__)

TOLD = 256
"""Formats and tools of which it is remembered that the log has told of them."""


def strict_grammar(
    outputs: StructuredOutputs | None,
    use: ToolUse,
    calls: ToolFormat,
    thoughts: AnyFormat | None,
    template: str,
    prompt: str,
    schemas: Mapping[str, Any],
) -> StructuredOutputs | None:
    """What the answer must look like; None where all text is allowed. What can't be held to a
    schema is as free as without `strict`, and the log says so.

    schemas: by the tool's name, as ToolUse.held has them.  The others: as in answer_grammar.
    """
    form = calls.form if calls.known else None
    if isinstance(form, ChannelFormat):
        return (
            free_answer(form, thoughts, template, prompt, schemas)
            if outputs is None
            else answer_grammar(outputs, use, form, thoughts, prompt)
        )
    written = None if form is None else written_by(form, template)
    if form is None or written is None:
        _say_unheld(calls.name, "")
        return answer_grammar(outputs, use, calls.form, thoughts, prompt)
    free = unheld(form, written, schemas)
    for name in free:
        _say_unheld(calls.name, name)
    schemas = {**schemas, **dict.fromkeys(free)}
    if outputs is None:
        return free_answer(form, thoughts, template, prompt, schemas)
    own = forced_tag(form, template, schemas, use.most)
    return answer_grammar(outputs, use, form, thoughts, prompt, own)


@lru_cache(maxsize=TOLD)
def _say_unheld(parser: str, tool: str) -> None:
    """Once for a format, or for a tool in it."""
    log.warning(
        "strict has no effect on calls that the model chooses to make: "
        + ("this format can't express the tool's schema" if tool else "their format isn't known"),
        parser=parser,
        **({"tool": tool} if tool else {}),
    )
