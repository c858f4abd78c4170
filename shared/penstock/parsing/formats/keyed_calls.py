"""Formats whose calls are a function's name, and keys and values each with marks of their own, and
the thoughts of the same families."""

from penstock.parsing.format import (
    NAME,
    CallFormat,
    CallHead,
    KeyedValues,
    MarkPair,
    Recognised,
    ThoughtFormat,
    Written,
)

# Calls as Qwen3-Coder, Qwen3.5 and Nemotron 3 write them:
#
# <tool_call>
# <function=get_weather>
# <parameter=city>
# Paris
# </parameter>
# </function>
# </tool_call>
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


# Calls as GLM-4.5 and later write them, with line breaks (4.5, 4.6) or without (4.7, 5), and as
# GLM-4 did, where a call is all of an answer:
#
# <tool_call>get_weather
# <arg_key>city</arg_key>
# <arg_value>Paris</arg_value>
# </tool_call>
#
# get_weather
# {"city": "Paris"}
GLM45 = CallFormat(
    names=("glm45", "glm47"),
    models="GLM-4.5 to 5, Ling 3, Laguna, Spark 2.5",
    recognised=Recognised(
        all_of=("<tool_call>", "<arg_key>", "<arg_value>"), families=("glm4_moe", "glm4_moe_lite")
    ),
    call=MarkPair("<tool_call>", "</tool_call>"),
    bodies=("named",),
    head=CallHead(ends=("\n",), before=("<arg_key>", "</tool_call>")),
    arguments=KeyedValues(
        key="<arg_key>",
        key_ends=(("</arg_key>", "schema"),),
        value=MarkPair("<arg_value>", "</arg_value>"),
    ),
    written=(
        Written(
            begin="<tool_call>",
            head_end="",
            key="<arg_key>",
            key_end="</arg_key><arg_value>",
            value_end="</arg_value>",
            end="</tool_call>",
            when="</arg_key><arg_value>",
        ),
        Written(
            begin="<tool_call>",
            head_end="\n",
            key="<arg_key>",
            key_end="</arg_key>\n<arg_value>",
            value_end="</arg_value>\n",
            end="</tool_call>",
            between="\n",
        ),
    ),
    tokens=(
        *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"),
        *("<arg_value>", "</arg_value>"),
    ),
)
GLM4 = CallFormat(
    names=("glm4",),
    models="GLM-4 and GLM-4-0414",
    recognised=Recognised(
        all_of=("<|observation|>",), none_of=("<arg_key>",), families=("glm", "glm4")
    ),
    bodies=("named",),
    head=CallHead(ends=("\n",)),
    bare=True,
    only_known=True,
)


# Answers of MiniMax M2, whose thoughts are as in `think`, and of M3, with a mark before each tag:
#
# <minimax:tool_call>
# <invoke name="get_weather">
# <parameter name="city">Paris</parameter>
# </invoke>
# </minimax:tool_call>
#
# <mm:think>Hm.</mm:think>]<]minimax[>[<tool_call>
# ]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[\
# </item>]<]minimax[>[</tags>]<]minimax[>[</invoke>
# ]<]minimax[>[</tool_call>
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
_M3_MARK = "]<]minimax[>["
_M3_THINK = MarkPair("<mm:think>", "</mm:think>")

MINIMAX_M3 = CallFormat(
    names=("minimax_m3",),
    models="MiniMax M3",
    recognised=Recognised(all_of=(_M3_MARK, "<invoke name=")),
    block=MarkPair(f"{_M3_MARK}<tool_call>", f"{_M3_MARK}</tool_call>"),
    call=MarkPair(f'{_M3_MARK}<invoke name="', f"{_M3_MARK}</invoke>"),
    bodies=("named",),
    head=CallHead(ends=('">',)),
    arguments=KeyedValues(
        key=f"{_M3_MARK}<",
        key_ends=((">", "schema"),),
        value=MarkPair("", f"{_M3_MARK}</KEY>"),
        nested=True,
    ),
    tokens=(_M3_MARK,),
)
MINIMAX_M3_THOUGHTS = ThoughtFormat(
    names=("minimax_m3",),
    models="MiniMax M3",
    recognised=Recognised(all_of=tuple(_M3_THINK)),
    block=_M3_THINK,
    tokens=tuple(_M3_THINK),
)


_SEED_BLOCK = MarkPair("<seed:tool_call>", "</seed:tool_call>")
_SEED_THINK = MarkPair("<seed:think>", "</seed:think>")

# Answers of Seed-OSS:
#
# <seed:think>Hm.</seed:think><seed:tool_call>
# <function=get_weather>
# <parameter=city>Paris</parameter>
# </function>
# </seed:tool_call>
SEED_OSS = CallFormat(
    names=("seed_oss",),
    models="Seed-OSS",
    recognised=Recognised(all_of=("<seed:tool_call>",), families=("seed_oss",)),
    block=_SEED_BLOCK,
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
    tokens=tuple(_SEED_BLOCK),
)
SEED_THOUGHTS = ThoughtFormat(
    names=("seed_oss",),
    models="Seed-OSS",
    recognised=Recognised(all_of=("<seed:think>",), families=("seed_oss",)),
    block=_SEED_THINK,
    tokens=tuple(_SEED_THINK),
)


def _hy_pair(name: str) -> MarkPair:
    return MarkPair(f"<{name}:opensource>", f"</{name}:opensource>")


_BLOCK, _CALL, _KEY, _VALUE = map(_hy_pair, ("tool_calls", "tool_call", "arg_key", "arg_value"))
_HY_THINK = _hy_pair("think")
_HY_NAME_END = "<tool_sep:opensource>"
_HY_V3 = Recognised(all_of=("<tool_sep{}>", ":opensource"))

# Answers of Hy3, whose marks have a suffix:
#
# <think:opensource>Hm.</think:opensource><tool_calls:opensource>
# <tool_call:opensource>get_weather<tool_sep:opensource>
# <arg_key:opensource>city</arg_key:opensource>
# <arg_value:opensource>Paris</arg_value:opensource>
# </tool_call:opensource>
# </tool_calls:opensource>
HY_V3 = CallFormat(
    names=("hy_v3",),
    models="Hy3",
    recognised=_HY_V3,
    block=_BLOCK,
    call=_CALL,
    bodies=("named",),
    head=CallHead(ends=(_HY_NAME_END,)),
    arguments=KeyedValues(key=_KEY.begin, key_ends=((_KEY.end, "schema"),), value=_VALUE),
    written=(
        Written(
            before=f"{_BLOCK.begin}\n",
            begin=_CALL.begin,
            head_end=f"{_HY_NAME_END}\n",
            key=_KEY.begin,
            key_end=f"{_KEY.end}\n{_VALUE.begin}",
            value_end=f"{_VALUE.end}\n",
            end=f"{_CALL.end}\n",
            after=_BLOCK.end,
        ),
    ),
    tokens=(*_BLOCK, *_CALL, *_KEY, *_VALUE, _HY_NAME_END),
)
HY_V3_THOUGHTS = ThoughtFormat(
    names=("hy_v3",),
    models="Hy3",
    recognised=_HY_V3,
    block=_HY_THINK,
    tokens=tuple(_HY_THINK),
)


_STEP3_BLOCK = MarkPair("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")

# Calls as Step 3 writes them:
#
# <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>\
# <steptml:invoke name="get_weather"><steptml:parameter name="city">Paris</steptml:parameter>\
# </steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>
STEP3 = CallFormat(
    names=("step3",),
    models="Step 3",
    recognised=Recognised(all_of=("<steptml:invoke",)),
    block=_STEP3_BLOCK,
    call=MarkPair("<｜tool_call_begin｜>", "</steptml:invoke><｜tool_call_end｜>"),
    bodies=("named",),
    head=CallHead(
        pattern=rf'function<｜tool_sep｜>\s{{0,8}}<steptml:invoke name="(?P<name>{NAME})',
        ends=('">',),
    ),
    arguments=KeyedValues(
        key='<steptml:parameter name="',
        key_ends=(('">', "schema"),),
        value=MarkPair("", "</steptml:parameter>"),
    ),
    tokens=(*_STEP3_BLOCK, "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"),
)


# Calls as MiniCPM5 writes them; a value with markup or line breaks is quoted:
#
# <function name="get_weather"><param name="city">Paris</param></function>
# <function name="run"><param name="code"><![CDATA[a < b]]></param></function>
MINICPM5 = CallFormat(
    names=("minicpm5",),
    models="MiniCPM5",
    recognised=Recognised(all_of=('<function name="', '<param name="')),
    call=MarkPair('<function name="', "</function>"),
    bodies=("named",),
    head=CallHead(ends=('">',)),
    arguments=KeyedValues(
        key='<param name="',
        key_ends=(('">', "schema"),),
        value=MarkPair("", "</param>"),
        quoted=MarkPair("<![CDATA[", "]]>"),
    ),
)
