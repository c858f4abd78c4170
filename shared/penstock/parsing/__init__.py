"""From a model's text to reasoning, content and tool calls, as the text comes.

A parser is fed pieces of text and gives events; what it gives for a text does not depend on where
the text was cut.  Plug-ins bring more of them, by the entry point groups `penstock.tool_parsers`
and `penstock.reasoning_parsers`.

interface       what a parser is, and what it says; the two kinds that plug-ins may bring
format          the description of a format, which is data
formats         the formats that are known
registry        parsers by name, and the choice by chat template and model type
output          reasoning, then calls: the parser of a whole answer, also where calls are forced
thinking        blocks of thinking by their description
channels        messages in channels by their description
calls           calls by the description of their format
call_text       what readers of calls share: a walk over the text, giving back what is no call
call_object     one call as a JSON object, its arguments handed on as they come
json_scanner    JSON, a character at a time
keyed_values, python_call, loose_object   calls written in other ways than JSON
values          plain text and Python's literals as JSON
forced_grammar  the grammar of calls that are forced, in the model's own format
held_calls      the grammar of answers whose calls are held to their tools' schemas
written_values, nodes   what these grammars are made of
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
