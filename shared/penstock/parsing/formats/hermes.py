"""Calls as Hermes and Qwen models write them:

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>

Smaller ones (Qwen2.5-Coder 0.5B) often leave the marks out, or write a code fence instead.
"""

from penstock.parsing.format import CallFormat, MarkPair, Recognised, Written

HERMES = CallFormat(
    names=("hermes",),
    models="Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3, MiMo, ERNIE 4.5, Bielik, Reka Edge",
    recognised=Recognised(
        all_of=("<tool_call>", "name"),
        none_of=("<arg_key>", "<function=", "<invoke", "]minimax[", "<tool_calls>"),
    ),
    call=MarkPair("<tool_call>", "</tool_call>"),
    bodies=("object",),
    bare=True,
    fenced=True,
    written=(
        Written(
            begin='<tool_call>\n{"name": "',
            head_end='", "arguments": ',
            end="}\n</tool_call>",
            between="\n",
        ),
    ),
)
