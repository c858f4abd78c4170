"""Answers of Kimi K3, in channels that are opened and closed (XTML). Each argument has its type:

<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>\
<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>\
<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>\
<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>
"""

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


def _channel(name: str) -> MarkPair:
    return MarkPair(f"<|open|>{name}<|sep|>", f"<|close|>{name}<|sep|>")


_RECOGNISED = Recognised(all_of=("<|open|>", "<|close|>", "<|sep|>"))
_TOKENS = ("<|open|>", "<|close|>", "<|sep|>")
_JSON_TYPES = ("number", "integer", "boolean", "null", "object", "array")
_RESPONSE = _channel("response")

KIMI_K3 = CallFormat(
    names=("kimi_k3",),
    models="Kimi K3",
    recognised=_RECOGNISED,
    block=_channel("tools"),
    call=MarkPair("<|open|>call ", "<|close|>call<|sep|>"),
    bodies=("named",),
    head=CallHead(
        pattern=rf'tool="(?P<name>{NAME})"(?:\s{{1,8}}index="\d{{1,9}}")?', ends=("<|sep|>",)
    ),
    arguments=KeyedValues(
        key='<|open|>argument key="',
        key_ends=(
            ('" type="string"<|sep|>', "text"),
            *((f'" type="{name}"<|sep|>', "json") for name in _JSON_TYPES),
        ),
        value=MarkPair("", "<|close|>argument<|sep|>"),
        whole=MarkPair('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
        escapes=(("&quot;", '"'), ("&amp;", "&")),
    ),
    written=(
        Written(
            opened=_RESPONSE.begin,
            before=f"{_RESPONSE.end}<|open|>tools<|sep|>",
            begin='<|open|>call tool="',
            head_end='" index="#"<|sep|>',
            index="#",
            key='<|open|>argument key="',
            key_end='" type="TYPE"<|sep|>',
            value_end="<|close|>argument<|sep|>",
            types=(
                ("string", "string"),
                *((name, name) for name in _JSON_TYPES if name != "integer"),
                ("integer", "number"),
            ),
            end="<|close|>call<|sep|>",
            after="<|close|>tools<|sep|>",
        ),
    ),
    tokens=_TOKENS,
)
KIMI_K3_THOUGHTS = ThoughtFormat(
    names=("kimi_k3",),
    models="Kimi K3",
    recognised=_RECOGNISED,
    block=_channel("think"),
    dropped=(*_RESPONSE, "<|close|>message<|sep|>"),
    answer=_RESPONSE,
    tokens=_TOKENS,
)
