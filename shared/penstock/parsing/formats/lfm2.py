"""Calls as LFM2 writes them, in Python's form:

<|tool_call_start|>[get_weather(city="Paris"), now()]<|tool_call_end|>
"""

from penstock.parsing.format import PYTHON, CallFormat, MarkPair, Recognised, Written

LFM2 = CallFormat(
    names=("lfm2",),
    models="LFM2, LFM2.5",
    recognised=Recognised(
        any_of=("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: "),
        none_of=("<tool_call>",),
        families=("lfm2", "lfm2_moe"),
    ),
    call=MarkPair("<|tool_call_start|>", "<|tool_call_end|>"),
    bodies=("list", "object", "python"),
    list_of="python",
    written=(
        Written(
            before="<|tool_call_start|>[",
            begin="",
            head_end="(",
            key_end="=",
            values=PYTHON,
            end=")",
            between=", ",
            after="]<|tool_call_end|>",
        ),
    ),
    tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
)
