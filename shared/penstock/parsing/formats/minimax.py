"""Answers of MiniMax M2, whose thoughts are as in `think`, and of M3, with a mark before each tag:

<minimax:tool_call>
<invoke name="get_weather">
<parameter name="city">Paris</parameter>
</invoke>
</minimax:tool_call>

<mm:think>Hm.</mm:think>]<]minimax[>[<tool_call>
]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>\
]<]minimax[>[</tags>]<]minimax[>[</invoke>
]<]minimax[>[</tool_call>
"""

from penstock.parsing.format import (
    CallFormat,
    CallHead,
    KeyedValues,
    MarkPair,
    Recognised,
    ThoughtFormat,
    Written,
)

MINIMAX_M2 = CallFormat(
    names=("minimax_m2",),
    models="MiniMax M2",
    recognised=Recognised(all_of=("minimax:tool_call", "<invoke"), families=("minimax_m2",)),
    block=MarkPair("<minimax:tool_call>", "</minimax:tool_call>"),
    call=MarkPair("<invoke name=", "</invoke>"),
    bodies=("named",),
    head=CallHead(pattern=r'"?(?P<name>[\w.\-/]{1,256})"?', ends=(">",)),
    arguments=KeyedValues(
        key='<parameter name="',
        key_ends=(('">', "schema"),),
        value=MarkPair("", "</parameter>"),
    ),
    written=(
        Written(
            before="<minimax:tool_call>\n",
            begin='<invoke name="',
            head_end='">\n',
            key='<parameter name="',
            key_end='">',
            value_end="</parameter>\n",
            end="</invoke>",
            between="\n",
            after="\n</minimax:tool_call>",
        ),
    ),
    tokens=("<minimax:tool_call>", "</minimax:tool_call>"),
)
_MARK = "]<]minimax[>["
_THINK = MarkPair("<mm:think>", "</mm:think>")

MINIMAX_M3 = CallFormat(
    names=("minimax_m3",),
    models="MiniMax M3",
    recognised=Recognised(all_of=(_MARK, "<invoke name=")),
    block=MarkPair(f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"),
    call=MarkPair(f'{_MARK}<invoke name="', f"{_MARK}</invoke>"),
    bodies=("named",),
    head=CallHead(ends=('">',)),
    arguments=KeyedValues(
        key=f"{_MARK}<",
        key_ends=((">", "schema"),),
        value=MarkPair("", f"{_MARK}</KEY>"),
        nested=True,
    ),
    tokens=(_MARK,),
)
MINIMAX_M3_THOUGHTS = ThoughtFormat(
    names=("minimax_m3",),
    models="MiniMax M3",
    recognised=Recognised(all_of=tuple(_THINK)),
    block=_THINK,
    tokens=tuple(_THINK),
)
