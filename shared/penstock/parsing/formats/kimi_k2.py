"""Calls as Kimi K2 writes them. Their ids are the model's own, numbered through a conversation:

<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>\
{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>
"""

from penstock.parsing.format import NAME, CallFormat, CallHead, MarkPair, Recognised, Written

KIMI_K2 = CallFormat(
    names=("kimi_k2",),
    models="Kimi K2",
    recognised=Recognised(
        all_of=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
    ),
    block=MarkPair("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    call=MarkPair("<|tool_call_begin|>", "<|tool_call_end|>"),
    bodies=("named",),
    head=CallHead(
        pattern=rf"(?P<id>(?:functions\.)?(?P<name>{NAME}):\d{{1,9}})",
        ends=("<|tool_call_argument_begin|>",),
    ),
    written=(
        Written(
            before="<|tool_calls_section_begin|>",
            begin="<|tool_call_begin|>functions.",
            head_end=":#<|tool_call_argument_begin|>",
            index="#",
            end="<|tool_call_end|>",
            after="<|tool_calls_section_end|>",
        ),
    ),
    tokens=(
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
)
