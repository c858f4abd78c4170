"""Calls as Functionary 3.1 writes them:

<function=get_weather>{"city": "Paris"}</function>
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
