"""Answers of Seed-OSS:

<seed:think>Hm.</seed:think><seed:tool_call>
<function=get_weather>
<parameter=city>Paris</parameter>
</function>
</seed:tool_call>
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

_BLOCK = MarkPair("<seed:tool_call>", "</seed:tool_call>")
_THINK = MarkPair("<seed:think>", "</seed:think>")

SEED_OSS = CallFormat(
    names=("seed_oss",),
    models="Seed-OSS",
    recognised=Recognised(all_of=("<seed:tool_call>",), families=("seed_oss",)),
    block=_BLOCK,
    call=MarkPair("<function=", "</function>"),
    bodies=("named",),
    head=CallHead(ends=(">",)),
    arguments=KeyedValues(
        key="<parameter=",
        key_ends=((">", "schema"),),
        value=MarkPair("", "</parameter>"),
    ),
    written=(
        Written(
            begin="<seed:tool_call>\n<function=",
            head_end=">\n",
            key="<parameter=",
            key_end=">",
            value_end="</parameter>\n",
            end="</function>\n</seed:tool_call>",
            between="\n",
        ),
    ),
    tokens=tuple(_BLOCK),
)
SEED_THOUGHTS = ThoughtFormat(
    names=("seed_oss",),
    models="Seed-OSS",
    recognised=Recognised(all_of=("<seed:think>",), families=("seed_oss",)),
    block=_THINK,
    tokens=tuple(_THINK),
)
