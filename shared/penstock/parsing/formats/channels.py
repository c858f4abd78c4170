"""Formats whose answers are messages, or parts of one, in channels: for thoughts, words
and calls."""

from penstock.parsing.format import (
    NAME,
    CallFormat,
    CallHead,
    ChannelFormat,
    KeyedValues,
    MarkPair,
    Recognised,
    ThoughtFormat,
    Written,
)

# Answers of gpt-oss: messages in channels (OpenAI's harmony format). A call's head names its
# function before the channel or after it:
#
# <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary \
# to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
HARMONY = ChannelFormat(
    names=("openai", "harmony"),
    reasoning_names=("openai_gptoss", "openai", "harmony"),
    models="gpt-oss",
    recognised=Recognised(
        all_of=("<|channel|>", "<|message|>", "<|start|>"), families=("gpt_oss",)
    ),
    begin="<|start|>",
    channel="<|channel|>",
    text="<|message|>",
    ends=("<|end|>", "<|call|>", "<|return|>"),
    thoughts=("analysis",),
    recipient=r"\bto=functions\.(?P<name>[\w-]{1,256})",
    answer="final",
    calls="commentary",
    address="to=functions.",
    content_type="<|constrain|>",
    tokens=(
        *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"),
        *("<|end|>", "<|call|>", "<|return|>"),
    ),
)


def _channel(name: str) -> MarkPair:
    return MarkPair(f"<|open|>{name}<|sep|>", f"<|close|>{name}<|sep|>")


_KIMI_K3 = Recognised(all_of=("<|open|>", "<|close|>", "<|sep|>"))
_KIMI_K3_TOKENS = ("<|open|>", "<|close|>", "<|sep|>")
_JSON_TYPES = ("number", "integer", "boolean", "null", "object", "array")
_RESPONSE = _channel("response")

# Answers of Kimi K3, in channels that are opened and closed (XTML). Each argument has its type:
#
# <|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>\
# <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>\
# <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>\
# <|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>
KIMI_K3 = CallFormat(
    names=("kimi_k3",),
    models="Kimi K3",
    recognised=_KIMI_K3,
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
    tokens=_KIMI_K3_TOKENS,
)
KIMI_K3_THOUGHTS = ThoughtFormat(
    names=("kimi_k3",),
    models="Kimi K3",
    recognised=_KIMI_K3,
    block=_channel("think"),
    dropped=(*_RESPONSE, "<|close|>message<|sep|>"),
    answer=_RESPONSE,
    tokens=_KIMI_K3_TOKENS,
)


_MUSE_BLOCK = MarkPair("<atem:function_calls>", "</atem:function_calls>")
_MUSE = Recognised(all_of=("<atem:invoke",))

# Answers of Muse Glimmer: messages to the model itself, to the user and to tools:
#
#  to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>
# <atem:invoke name="get_weather">
# <atem:parameter name="city">Paris</atem:parameter>
# </atem:invoke>
# </atem:function_calls><|eot|>
MUSE_GLIMMER = CallFormat(
    names=("muse_glimmer",),
    models="Muse Glimmer",
    recognised=_MUSE,
    block=_MUSE_BLOCK,
    call=MarkPair('<atem:invoke name="', "</atem:invoke>"),
    bodies=("named",),
    head=CallHead(ends=('">',)),
    arguments=KeyedValues(
        key='<atem:parameter name="',
        key_ends=(('">', "schema"),),
        value=MarkPair("", "</atem:parameter>"),
    ),
    tokens=(*_MUSE_BLOCK, '<atem:invoke name="', "</atem:invoke>", "</atem:parameter>"),
)
MUSE_GLIMMER_THOUGHTS = ChannelFormat(
    names=(),
    reasoning_names=("muse_glimmer",),
    models="Muse Glimmer",
    recognised=_MUSE,
    begin="<|start|>",
    channel=" to=",
    text="<|message|>",
    ends=("<|eom|>", "<|eot|>"),
    thoughts=("self",),
    answer="user",
    tokens=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
)
