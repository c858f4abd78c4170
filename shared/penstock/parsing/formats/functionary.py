"""Answers of Functionary 3.1, and of 3.2, whose prompt ends in the first mark; `all` is the user:

<function=get_weather>{"city": "Paris"}</function>

all
I'll look.>>>get_weather
{"city": "Paris"}

Since a text may hold such marks, they are calls only of functions that the request offers.
"""

from penstock.parsing.format import CallFormat, CallHead, MarkPair, Recognised, Written

FUNCTIONARY = CallFormat(
    names=("functionary_v3_llama_31",),
    models="Functionary 3.1",
    recognised=Recognised(all_of=("<function=", "<|python_tag|>"), none_of=("<parameter=",)),
    call=MarkPair("<function=", "</function>"),
    bodies=("named",),
    head=CallHead(ends=(">",)),
    written=(Written(begin="<function=", head_end=">", end="</function>"),),
)
FUNCTIONARY_V32 = CallFormat(
    names=("functionary_v3_llama_3",),
    models="Functionary 3.2",
    recognised=Recognised(all_of=(">>>all",)),
    call=MarkPair(">>>"),
    bodies=("named",),
    head=CallHead(ends=("\n",), content="all"),
    bare=True,
    only_known=True,
)
