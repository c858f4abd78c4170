"""Answers of Hy3, whose marks have a suffix:

<think:opensource>Hm.</think:opensource><tool_calls:opensource>
<tool_call:opensource>get_weather<tool_sep:opensource>
<arg_key:opensource>city</arg_key:opensource>
<arg_value:opensource>Paris</arg_value:opensource>
</tool_call:opensource>
</tool_calls:opensource>
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


def _pair(name: str) -> MarkPair:
    return MarkPair(f"<{name}:opensource>", f"</{name}:opensource>")


_BLOCK, _CALL, _KEY, _VALUE = map(_pair, ("tool_calls", "tool_call", "arg_key", "arg_value"))
_THINK = _pair("think")
_NAME_END = "<tool_sep:opensource>"
_RECOGNISED = Recognised(all_of=("<tool_sep{}>", ":opensource"))

HY_V3 = CallFormat(
    names=("hy_v3",),
    models="Hy3",
    recognised=_RECOGNISED,
    block=_BLOCK,
    call=_CALL,
    bodies=("named",),
    head=CallHead(ends=(_NAME_END,)),
    arguments=KeyedValues(key=_KEY.begin, key_ends=((_KEY.end, "schema"),), value=_VALUE),
    written=(
        Written(
            before=f"{_BLOCK.begin}\n",
            begin=_CALL.begin,
            head_end=f"{_NAME_END}\n",
            key=_KEY.begin,
            key_end=f"{_KEY.end}\n{_VALUE.begin}",
            value_end=f"{_VALUE.end}\n",
            end=f"{_CALL.end}\n",
            after=_BLOCK.end,
        ),
    ),
    tokens=(*_BLOCK, *_CALL, *_KEY, *_VALUE, _NAME_END),
)
HY_V3_THOUGHTS = ThoughtFormat(
    names=("hy_v3",),
    models="Hy3",
    recognised=_RECOGNISED,
    block=_THINK,
    tokens=tuple(_THINK),
)
