"""Formats whose calls are written as in Python, or as objects whose keys have no quotes."""

from dataclasses import replace

from penstock.parsing.format import (
    NAME,
    PYTHON,
    CallFormat,
    CallHead,
    LooseObject,
    MarkPair,
    Recognised,
    ValueMarks,
    Written,
)

_LIST = Written(
    before="[",
    begin="",
    head_end="(",
    key_end="=",
    values=PYTHON,
    end=")",
    between=", ",
    after="]",
)

# Calls in Python's form without marks of tokens: a list that is the whole answer, as Llama 4 and
# 3.2 write it, and lines in a block, as OLMo 3 does:
#
# [get_weather(city="Paris"), now()]
#
# <function_calls>
# get_weather(city="Paris")
# now()
# </function_calls>
#
# Since a list may just as well be content, it is calls only of functions that the request offers.
PYTHONIC = CallFormat(
    names=("llama4_pythonic", "pythonic"),
    models="Llama 4, Llama 3.2 told to call so, ToolACE",
    recognised=Recognised(all_of=("[func_name1(",), families=("llama4",)),
    call=MarkPair("<|python_start|>", "<|python_end|>"),
    bodies=("list",),
    list_of="python",
    written=(_LIST,),
    bare=True,
    only_known=True,
    tokens=("<|python_start|>", "<|python_end|>"),
)
OLMO3 = CallFormat(
    names=("olmo3",),
    models="OLMo 3",
    recognised=Recognised(all_of=("<function_calls>", "</functions>"), none_of=("DSML", "atem:")),
    block=MarkPair("<function_calls>", "</function_calls>"),
    bodies=("python",),
    written=(
        replace(
            _LIST,
            before="<function_calls>\n",
            between="\n",
            after="\n</function_calls>",
        ),
    ),
)


# Calls as LFM2 writes them, in Python's form:
#
# <|tool_call_start|>[get_weather(city="Paris"), now()]<|tool_call_end|>
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
    written=(replace(_LIST, before="<|tool_call_start|>[", after="]<|tool_call_end|>"),),
    tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
)


_GEMMA_CALL = MarkPair("<|tool_call>", "<tool_call|>")
_FUNCTION_CALL = MarkPair("<start_function_call>", "<end_function_call>")


def _gemma_written(call: MarkPair, quote: str) -> Written:
    return Written(
        begin=f"{call.begin}call:",
        head_end="{",
        key_end=":",
        values=ValueMarks(quote=quote, comma=",", key=("", ":"), sorted_keys=True),
        end=f"}}{call.end}",
    )


# Calls as Gemma 4 writes them, and FunctionGemma, whose marks differ:
#
# <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
# <start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>
GEMMA4 = CallFormat(
    names=("gemma4",),
    models="Gemma 4",
    recognised=Recognised(
        all_of=("<|tool_call>", "<tool_call|>"), families=("gemma4", "gemma4_unified")
    ),
    call=_GEMMA_CALL,
    bodies=("named",),
    head=CallHead(pattern=rf"call:\s{{0,8}}(?P<name>{NAME})", before=("{",)),
    arguments=LooseObject(quote='<|"|>'),
    written=(_gemma_written(_GEMMA_CALL, '<|"|>'),),
    tokens=(*_GEMMA_CALL, '<|"|>'),
)
FUNCTIONGEMMA = replace(
    GEMMA4,
    names=("functiongemma",),
    models="FunctionGemma",
    recognised=Recognised(all_of=(*_FUNCTION_CALL, "<escape>")),
    call=_FUNCTION_CALL,
    arguments=LooseObject(quote="<escape>"),
    written=(_gemma_written(_FUNCTION_CALL, "<escape>"),),
    tokens=(*_FUNCTION_CALL, "<escape>"),
)
