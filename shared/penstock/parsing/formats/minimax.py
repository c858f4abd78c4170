"""Calls as MiniMax M2 writes them:

<minimax:tool_call>
<invoke name="get_weather">
<parameter name="city">Paris</parameter>
</invoke>
</minimax:tool_call>
"""

from penstock.parsing.format import CallFormat, CallHead, KeyedValues, MarkPair, Recognised, Written

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
