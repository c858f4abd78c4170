"""From a model's text to reasoning, content and tool calls, as the text comes.

A parser is fed pieces of text and gives events; what it gives for a text does not depend on where
the text was cut.  Plug-ins bring more of them, by the entry point groups `penstock.tool_parsers`
and `penstock.reasoning_parsers`.

events          what a parser says
interface       what a parser is; the two kinds that plug-ins may bring
format          the description of a format, which is data
formats         the formats that are known, one module to a family
registry        parsers by name, and the choice by chat template and model type
json_scanner    JSON, a character at a time
call_object     one call as a JSON object, its arguments handed on as they come
keyed_values, python_call    calls written as keys and values, and as in Python
values          plain text and Python's literals as JSON
call_text       what readers of calls share: a walk over the text, giving back what is no call
calls           calls by the description of their format
forced          calls that a grammar forced: tool_choice required, or a named function
thinking        blocks of thinking by their description
channels        messages in channels by their description
output          reasoning, then calls: the parser of a whole answer
"""

from penstock.parsing.interface import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    OutputParser,
    Reasoning,
    ReasoningParser,
    ToolParser,
)
from penstock.parsing.registry import reasoning_parser, tool_parser

__all__ = [
    "CallArguments",
    "CallBegin",
    "Content",
    "Event",
    "OutputParser",
    "Reasoning",
    "ReasoningParser",
    "ToolParser",
    "reasoning_parser",
    "tool_parser",
]
