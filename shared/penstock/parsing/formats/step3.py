"""Calls as Step 3 writes them:

<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>\
<steptml:invoke name="get_weather"><steptml:parameter name="city">Paris</steptml:parameter>\
</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>
"""

from penstock.parsing.format import NAME, CallFormat, CallHead, KeyedValues, MarkPair, Recognised

_BLOCK = MarkPair("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")

STEP3 = CallFormat(
    names=("step3",),
    models="Step 3",
    recognised=Recognised(all_of=("<steptml:invoke",)),
    block=_BLOCK,
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
    tokens=(*_BLOCK, "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"),
)
