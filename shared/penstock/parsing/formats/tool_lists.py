"""Calls as JSON objects, or a list of them, between marks that only some families use:

<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>
<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>
<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]
functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]
<|action_start|><|plugin|>{"name": "get_weather", "parameters": {"city": "Paris"}}<|action_end|>
<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}
<|message_sep|>

function call<|role_sep|>
{"name": "get_weather", "arguments": {"city": "Paris"}}
<toolcall> {"name": "get_weather", "arguments": {"city": "Paris"}} </toolcall>
"""

from dataclasses import replace

from penstock.parsing.format import CallFormat, MarkPair, Recognised, Written

_OBJECT = Written(begin='{"name": "', head_end='", "arguments": ', end="}")


def _list(begin: str, end: str) -> Written:
    return replace(_OBJECT, before=begin, between=", ", after=end)


TOOL_CALLS = CallFormat(
    names=("jamba", "hunyuan_a13b", "minimax"),
    models="Jamba, Hunyuan A13B, MiniMax M1, Apriel",
    recognised=Recognised(all_of=("<tool_calls>",), none_of=("DSML",)),
    block=MarkPair("<tool_calls>", "</tool_calls>"),
    bodies=("object", "list"),
    written=(
        replace(
            _OBJECT,
            before="<tool_calls>\n",
            between="\n",
            after="\n</tool_calls>",
            when="<beginning_of_sentence>",
        ),
        _list("<tool_calls>[", "]</tool_calls>"),
    ),
    tokens=("<tool_calls>", "</tool_calls>"),
)
NEMOTRON_JSON = CallFormat(
    names=("nemotron_json",),
    models="Nemotron Nano 2",
    recognised=Recognised(all_of=("<TOOLCALL>",)),
    call=MarkPair("<TOOLCALL>", "</TOOLCALL>"),
    bodies=("list", "object"),
    written=(_list("<TOOLCALL>[", "]</TOOLCALL>"),),
)
GRANITE = CallFormat(
    names=("granite",),
    models="Granite 3",
    recognised=Recognised(all_of=("<|tool_call|>", "<|start_of_role|>")),
    call=MarkPair("<|tool_call|>"),
    bodies=("list", "object"),
    written=(_list("<|tool_call|>[", "]"),),
    tokens=("<|tool_call|>",),
)
PHI4_MINI = CallFormat(
    names=("phi4_mini_json",),
    models="Phi-4-mini, FireFunction 2",
    recognised=Recognised(any_of=("<|/tool|>", "functools[")),
    call=MarkPair("functools"),
    bodies=("list",),
    needs_arguments=True,
    written=(replace(_list("functools[", "]"), told_by="functools["),),
)
INTERNLM = CallFormat(
    names=("internlm",),
    models="InternLM 2.5 and 3",
    recognised=Recognised(all_of=("<|plugin|>",)),
    call=MarkPair("<|action_start|><|plugin|>", "<|action_end|>"),
    bodies=("object",),
    written=(
        Written(
            begin='<|action_start|><|plugin|>\n{"name": "',
            head_end='", "parameters": ',
            end="}<|action_end|>",
            between="\n",
        ),
    ),
    tokens=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
)
GIGACHAT3 = CallFormat(
    names=("gigachat3",),
    models="GigaChat 3.1",
    recognised=Recognised(all_of=("<|function_call|>", "<|role_sep|>")),
    call=MarkPair("<|function_call|>"),
    bodies=("object",),
    written=(replace(_OBJECT, begin='<|function_call|>{"name": "', between="\n"),),
    tokens=("<|function_call|>",),
)
GIGACHAT30 = CallFormat(
    names=("gigachat30",),
    models="GigaChat 3.0",
    recognised=Recognised(
        all_of=("'function call'", "<|role_sep|>"), none_of=("<|function_call|>",)
    ),
    block=MarkPair("<|message_sep|>"),
    call=MarkPair("function call<|role_sep|>"),
    bodies=("object",),
    tokens=("<|message_sep|>", "<|role_sep|>"),
)
NEMOTRON_MINI = CallFormat(
    names=("nemotron_mini",),
    models="Nemotron Mini, Minitron",
    recognised=Recognised(all_of=("<toolcall>",)),
    call=MarkPair("<toolcall>", "</toolcall>"),
    bodies=("object",),
)
