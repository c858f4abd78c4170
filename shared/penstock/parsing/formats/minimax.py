"""Calls as MiniMax M2 writes them:

<minimax:tool_call>
<invoke name="get_weather">
<parameter name="city">Paris</parameter>
</invoke>
</minimax:tool_call>
"""

from penstock.parsing.format import CallFormat, CallHead, KeyedValues, MarkPair, Recognised

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
    tokens=("<minimax:tool_call>", "</minimax:tool_call>"),
)
