"""Calls that the model chooses to make, held to the schemas of tools that are strict."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from penstock.parsing.forced_grammar import forced_tag, written_by
from penstock.parsing.format import AnyFormat, CallFormat, ChannelFormat
from penstock.parsing.held_calls import unheld
from penstock.parsing.registry import ToolFormat
from penstock.process import logs
from penstock.request.structured_outputs import StructuredOutputs
from penstock_gateway.chat.answer_grammar import answer_grammar, free_answer
from penstock_gateway.chat.tools import ToolUse

log = logs.get(__name__)

UNKNOWN = "their format isn't known"
INEXPRESSIBLE = "this format can't express the tool's schema"
TOO_LARGE = "all tools' schemas in one grammar are longer than max_grammar_bytes"

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
    largest: int,
) -> StructuredOutputs | None:
    """What the answer must look like; None where all text is allowed. What can't be held to a
    schema is as free as without `strict`, and the log says so.

    schemas: by the tool's name, as ToolUse.held has them.  largest: bytes that the engine takes of
    a grammar: where all schemas are too much, calls are held to the tools' names.  The others: as
    in answer_grammar.
    """
    form = calls.form if calls.known else None
    written = None if not isinstance(form, CallFormat) else written_by(form, template)
    if form is None or (isinstance(form, CallFormat) and written is None):
        _say_unheld(calls.name, UNKNOWN)
        return answer_grammar(outputs, use, calls.form, thoughts, prompt)
    if written is not None and isinstance(form, CallFormat):
        free = unheld(form, written, schemas)
        for name in free:
            _say_unheld(calls.name, INEXPRESSIBLE, name)
        schemas = {**schemas, **dict.fromkeys(free)}
    for held in (schemas, dict.fromkeys(schemas)):
        grammar = _held(outputs, use, form, thoughts, template, prompt, held)
        if grammar is None or bytes_of(grammar) <= largest:
            return grammar
        _say_unheld(calls.name, TOO_LARGE)
    return answer_grammar(outputs, use, calls.form, thoughts, prompt)


def _held(
    outputs: StructuredOutputs | None,
    use: ToolUse,
    form: CallFormat | ChannelFormat,
    thoughts: AnyFormat | None,
    template: str,
    prompt: str,
    schemas: Mapping[str, Any],
) -> StructuredOutputs | None:
    if outputs is None:
        return free_answer(form, thoughts, template, prompt, schemas)
    if isinstance(form, ChannelFormat):
        return answer_grammar(outputs, use, form, thoughts, prompt)
    own = forced_tag(form, template, schemas, use.most)
    return answer_grammar(outputs, use, form, thoughts, prompt, own)


def bytes_of(grammar: StructuredOutputs) -> int:
    """Returns the length of the text that the engine gets."""
    return len(grammar.definition().text.encode())


@lru_cache(maxsize=TOLD)
def _say_unheld(parser: str, why: str, tool: str = "") -> None:
    """Once for a reason of a format, or of a tool in it."""
    log.warning(
        f"strict has no effect on calls that the model chooses to make: {why}",
        parser=parser,
        **({"tool": tool} if tool else {}),
    )
