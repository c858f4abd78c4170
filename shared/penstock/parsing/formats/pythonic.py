"""Calls in Python's form without marks of tokens: a list that is the whole answer, as Llama 4 and
3.2 write it, and lines in a block, as OLMo 3 does:

[get_weather(city="Paris"), now()]

<function_calls>
get_weather(city="Paris")
now()
</function_calls>

Since a list may just as well be content, it is calls only of functions that the request offers.
"""

from dataclasses import replace

from penstock.parsing.format import PYTHON, CallFormat, MarkPair, Recognised, Written

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
