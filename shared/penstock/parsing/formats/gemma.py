"""Calls as Gemma 4 writes them, and FunctionGemma, whose marks differ:

<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>
"""

from dataclasses import replace

from penstock.parsing.format import (
    NAME,
    CallFormat,
    CallHead,
    LooseObject,
    MarkPair,
    Recognised,
    ValueMarks,
    Written,
)

_CALL = MarkPair("<|tool_call>", "<tool_call|>")
_FUNCTION_CALL = MarkPair("<start_function_call>", "<end_function_call>")


def _written(call: MarkPair, quote: str) -> Written:
    return Written(
        begin=f"{call.begin}call:",
        head_end="{",
        key_end=":",
        values=ValueMarks(quote=quote, comma=",", key=("", ":"), sorted_keys=True),
        end=f"}}{call.end}",
    )


GEMMA4 = CallFormat(
    names=("gemma4",),
    models="Gemma 4",
    recognised=Recognised(all_of=("<|tool_call>", "<tool_call|>"), families=("gemma4",)),
    call=_CALL,
    bodies=("named",),
    head=CallHead(pattern=rf"call:\s{{0,8}}(?P<name>{NAME})", before=("{",)),
    arguments=LooseObject(quote='<|"|>'),
    written=(_written(_CALL, '<|"|>'),),
    tokens=(*_CALL, '<|"|>'),
)
FUNCTIONGEMMA = replace(
    GEMMA4,
    names=("functiongemma",),
    models="FunctionGemma",
    recognised=Recognised(all_of=(*_FUNCTION_CALL, "<escape>")),
    call=_FUNCTION_CALL,
    arguments=LooseObject(quote="<escape>"),
    written=(_written(_FUNCTION_CALL, "<escape>"),),
    tokens=(*_FUNCTION_CALL, "<escape>"),
)
