"""From a model's text to reasoning, content and tool calls, as the text comes.

A parser is fed pieces of text and gives events; what it gives for a text does not depend on where
the text was cut.  Plug-ins bring more of them, by the entry point groups `penstock.tool_parsers`
and `penstock.reasoning_parsers`.

events          what a parser says
interface       what a parser is; the two kinds that plug-ins may bring
registry        parsers by name, and the choice by chat template
json_scanner    JSON, a character at a time
call_object     one call as a JSON object, its arguments handed on as they come
call_text       what the formats below share: finding calls in a text, giving back what is none
hermes, llama3_json, mistral, json_calls    the formats
forced          calls that a grammar forced: tool_choice required, or a named function
thinking        `<think>` blocks
output          reasoning, then calls: the parser of a whole answer
"""

from penstock.parsing.events import CallArguments, CallBegin, Content, Event, Reasoning
from penstock.parsing.interface import OutputParser, ReasoningParser, ToolParser
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
