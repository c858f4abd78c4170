"""Calls as Qwen3-Coder, Qwen3.5 and Nemotron 3 write them:

<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

from penstock.parsing.format import (
    CallFormat,
    CallHead,
    KeyedValues,
    MarkPair,
    Recognised,
    Written,
)

QWEN3_CODER = CallFormat(
    names=("qwen3_coder", "qwen3_xml", "step3p5"),
    models="Qwen3-Coder, Qwen3.5, Nemotron 3 Nano, Step 3.5",
    recognised=Recognised(all_of=("<tool_call>", "<function=", "<parameter=")),
    block=MarkPair("<tool_call>", "</tool_call>"),
    call=MarkPair("<function=", "</function>"),
    bodies=("named",),
    head=CallHead(ends=(">",)),
    arguments=KeyedValues(
        key="<parameter=",
        key_ends=((">", "schema"),),
        value=MarkPair("", "</parameter>"),
        padding="\n",
    ),
    written=(
        Written(
            begin="<tool_call>\n<function=",
            head_end=">\n",
            key="<parameter=",
            key_end=">\n",
            value_end="\n</parameter>\n",
            end="</function>\n</tool_call>",
            between="\n",
        ),
    ),
)
