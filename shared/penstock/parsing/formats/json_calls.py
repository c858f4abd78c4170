"""Formats whose calls are JSON objects with a name and arguments, alone or in lists, and the
thoughts of the same families."""

from dataclasses import replace

from penstock.parsing.format import (
    CallFormat,
    CallHead,
    MarkPair,
    Recognised,
    ThoughtFormat,
    Written,
)

# Calls as Hermes and Qwen models write them:
#
# <tool_call>
# {"name": "get_weather", "arguments": {"city": "Paris"}}
# </tool_call>
#
# Smaller ones (Qwen2.5-Coder 0.5B) often leave the marks out, or write a code fence instead, or a
# list of several calls, after a sentence or not.
HERMES = CallFormat(
    names=("hermes",),
    models="Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3, MiMo, ERNIE 4.5, Bielik, Reka Edge",
    recognised=Recognised(
        all_of=("<tool_call>", "name"),
        none_of=("<arg_key>", "<function=", "<invoke", "]minimax[", "<tool_calls>"),
    ),
    call=MarkPair("<tool_call>", "</tool_call>"),
    bodies=("object", "list"),
    bare=True,
    fenced=True,
    anywhere=True,
    written=(
        Written(
            begin='<tool_call>\n{"name": "',
            head_end='", "arguments": ',
            end="}\n</tool_call>",
            between="\n",
        ),
    ),
)


# Calls as Llama 3.1 and later write them: the answer is one JSON object, or several with `;` or
# `,` between them, with or without the mark:
#
# <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}
#
# Since an object may just as well be content, it is a call only if the request offers a function of
# that name.
LLAMA3_JSON = CallFormat(
    names=("llama3_json",),
    models="Llama 3.1, 3.2 and 3.3",
    recognised=Recognised(
        any_of=("<|python_tag|>", "Environment: ipython"), none_of=("<function=",)
    ),
    call=MarkPair("<|python_tag|>"),
    bodies=("object",),
    bare=True,
    only_known=True,
    needs_arguments=True,
    separators=";,",
    written=(Written(begin='{"name": "', head_end='", "parameters": ', end="}", between="; "),),
    tokens=("<|python_tag|>",),
)


# Calls of models that were trained on no format of their own: JSON objects, or an array of them, in
# a code fence or not, after a sentence or not. Only objects that name a function of the request are
# calls; anything else is content.
#
# [{"name": "get_weather", "arguments": {"city": "Paris"}}]
JSON = CallFormat(
    names=("json",),
    models="models without a format of their own",
    bodies=("object", "list"),
    bare=True,
    fenced=True,
    anywhere=True,
    only_known=True,
    needs_arguments=True,
    space_stays=True,
)


# Calls as Mistral's models write them, of the older form and the newer:
#
# [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]
# [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
MISTRAL = CallFormat(
    names=("mistral",),
    models="Mistral, Ministral, Devstral",
    recognised=Recognised(all_of=("[TOOL_CALLS]",)),
    call=MarkPair("[TOOL_CALLS]"),
    bodies=("list", "object", "named"),
    head=CallHead(
        pattern=r"(?P<name>[\w.-]{1,256})\s{0,16}(?:\[CALL_ID\][\w-]{1,64})?(?:\[ARGS\])?",
        before=("{",),
    ),
    tokens=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    short_ids=True,
    written=(
        Written(begin="[TOOL_CALLS]", head_end="[ARGS]", end="", when="[ARGS]"),
        Written(
            before="[TOOL_CALLS][",
            begin='{"name": "',
            head_end='", "arguments": ',
            end="}",
            between=", ",
            after="]",
        ),
    ),
)


_COMMAND = Recognised(all_of=("<|START_ACTION|>",), families=("cohere2",))

# Answers of Command R7B, A and later, in blocks for thoughts, calls and words, and calls of
# Command R and R+:
#
# <|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[
#     {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}
# ]<|END_ACTION|>
#
# Action:
# ```json
# [
#     {
#         "tool_name": "get_weather",
#         "parameters": {"city": "Paris"}
#     }
# ]```
COMMAND = CallFormat(
    names=("cohere_command3", "command_r7b"),
    models="Command R7B, Command A",
    recognised=_COMMAND,
    call=MarkPair("<|START_ACTION|>", "<|END_ACTION|>"),
    bodies=("list", "object"),
    keys=(("tool_name",), ("parameters",)),
    written=(
        Written(
            before="<|START_ACTION|>[\n    ",
            begin='{"tool_call_id": "#", "tool_name": "',
            index="#",
            head_end='", "parameters": ',
            end="}",
            between=",\n    ",
            after="\n]<|END_ACTION|>",
        ),
    ),
    tokens=("<|START_ACTION|>", "<|END_ACTION|>"),
)
COMMAND_THOUGHTS = ThoughtFormat(
    names=("cohere_command3", "command_r7b"),
    models="Command R7B, Command A",
    recognised=_COMMAND,
    block=MarkPair("<|START_THINKING|>", "<|END_THINKING|>"),
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    answer=MarkPair("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    tokens=(
        *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        *("<|START_TEXT|>", "<|END_TEXT|>"),
    ),
)
COMMAND_R = CallFormat(
    names=("command_r",),
    models="Command R, Command R+",
    recognised=Recognised(
        all_of=("Action:", "```json", "tool_name"), none_of=("<|START_ACTION|>",)
    ),
    call=MarkPair("Action:"),
    bodies=("list",),
    keys=(("tool_name",), ("parameters",)),
    fenced=True,
    only_known=True,
)


_TOOLS = MarkPair("<|tools_prefix|>", "<|tools_suffix|>")
_INNER = MarkPair("<|inner_prefix|>", "<|inner_suffix|>")

# Answers of Apertus. The name of a call is the key of its arguments:
#
# <|inner_prefix|>Hm.<|inner_suffix|><|tools_prefix|>[{"get_weather": {"city": "Paris"}}]\
# <|tools_suffix|>
APERTUS = CallFormat(
    names=("apertus",),
    models="Apertus",
    recognised=Recognised(all_of=tuple(_TOOLS)),
    call=_TOOLS,
    bodies=("list", "object"),
    keys=None,
    written=(
        Written(
            before="<|tools_prefix|>[",
            begin='{"',
            head_end='": ',
            end="}",
            between=", ",
            after="]<|tools_suffix|>",
        ),
    ),
    tokens=tuple(_TOOLS),
)
APERTUS_THOUGHTS = ThoughtFormat(
    names=("apertus",),
    models="Apertus",
    recognised=Recognised(all_of=tuple(_INNER)),
    block=_INNER,
    tokens=tuple(_INNER),
)


_OBJECT = Written(begin='{"name": "', head_end='", "arguments": ', end="}")


def _list(begin: str, end: str) -> Written:
    return replace(_OBJECT, before=begin, between=", ", after=end)


# Calls as JSON objects, or a list of them, between marks that only some families use:
#
# <tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>
# <TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>
# <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]
# functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]
# <|action_start|><|plugin|>{"name": "get_weather", "parameters": {"city": "Paris"}}<|action_end|>
# <|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}
# <|message_sep|>
#
# function call<|role_sep|>
# {"name": "get_weather", "arguments": {"city": "Paris"}}
# <toolcall> {"name": "get_weather", "arguments": {"city": "Paris"}} </toolcall>
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
