"""Answers of Muse Glimmer: messages to the model itself, to the user and to tools:

 to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>
<atem:invoke name="get_weather">
<atem:parameter name="city">Paris</atem:parameter>
</atem:invoke>
</atem:function_calls><|eot|>
"""

from penstock.parsing.format import (
    CallFormat,
    CallHead,
    ChannelFormat,
    KeyedValues,
    MarkPair,
    Recognised,
)

_BLOCK = MarkPair("<atem:function_calls>", "</atem:function_calls>")
_RECOGNISED = Recognised(all_of=("<atem:invoke",))

MUSE_GLIMMER = CallFormat(
    names=("muse_glimmer",),
    models="Muse Glimmer",
    recognised=_RECOGNISED,
    block=_BLOCK,
    call=MarkPair('<atem:invoke name="', "</atem:invoke>"),
    bodies=("named",),
    head=CallHead(ends=('">',)),
    arguments=KeyedValues(
        key='<atem:parameter name="',
        key_ends=(('">', "schema"),),
        value=MarkPair("", "</atem:parameter>"),
    ),
    tokens=(*_BLOCK, '<atem:invoke name="', "</atem:invoke>", "</atem:parameter>"),
)
MUSE_GLIMMER_THOUGHTS = ChannelFormat(
    names=(),
    reasoning_names=("muse_glimmer",),
    models="Muse Glimmer",
    recognised=_RECOGNISED,
    begin="<|start|>",
    channel=" to=",
    text="<|message|>",
    ends=("<|eom|>", "<|eot|>"),
    thoughts=("self",),
    answer="user",
    tokens=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
)
