"""Calls as DeepSeek V3 and R1 write them, then V3.1:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
```json
{"city": "Paris"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}\
<｜tool▁call▁end｜><｜tool▁calls▁end｜>

and then V3.2 and V4, whose two blocks differ in the name `tool_calls`:

<｜DSML｜function_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

from dataclasses import replace

from penstock.parsing.format import CallFormat, CallHead, KeyedValues, MarkPair, Recognised, Written

_BLOCK = MarkPair("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_TOKENS = (*_BLOCK, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>")

DEEPSEEK_V3 = CallFormat(
    names=("deepseek_v3",),
    models="DeepSeek V3 and R1",
    recognised=Recognised(all_of=("<｜tool▁sep｜>", "```json")),
    block=_BLOCK,
    call=MarkPair("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "```<｜tool▁call▁end｜>"),
    bodies=("named",),
    head=CallHead(ends=("```json",)),
    written=(
        Written(
            before="<｜tool▁calls▁begin｜>",
            begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            head_end="\n```json\n",
            end="\n```<｜tool▁call▁end｜>",
            between="\n",
            after="<｜tool▁calls▁end｜>",
        ),
    ),
    tokens=_TOKENS,
)
DEEPSEEK_V31 = CallFormat(
    names=("deepseek_v31",),
    models="DeepSeek V3.1",
    recognised=Recognised(all_of=("<｜tool▁sep｜>",), none_of=("```json",)),
    block=_BLOCK,
    call=MarkPair("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    bodies=("named",),
    head=CallHead(ends=("<｜tool▁sep｜>",)),
    written=(
        Written(
            before="<｜tool▁calls▁begin｜>",
            begin="<｜tool▁call▁begin｜>",
            head_end="<｜tool▁sep｜>",
            end="<｜tool▁call▁end｜>",
            after="<｜tool▁calls▁end｜>",
        ),
    ),
    tokens=_TOKENS,
)


def _dsml(block: str) -> Written:
    return Written(
        before=f"<｜DSML｜{block}>\n",
        begin='<｜DSML｜invoke name="',
        head_end='">\n',
        key='<｜DSML｜parameter name="',
        key_end='" string="true">',
        json_key_end='" string="false">',
        value_end="</｜DSML｜parameter>\n",
        end="</｜DSML｜invoke>",
        between="\n",
        after=f"\n</｜DSML｜{block}>",
    )


DEEPSEEK_V32 = CallFormat(
    names=("deepseek_v32",),
    models="DeepSeek V3.2",
    recognised=Recognised(all_of=("DSML", "function_calls"), none_of=("tool_calls>",)),
    block=MarkPair("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    call=MarkPair('<｜DSML｜invoke name="', "</｜DSML｜invoke>"),
    bodies=("named",),
    head=CallHead(ends=('">',)),
    arguments=KeyedValues(
        key='<｜DSML｜parameter name="',
        key_ends=(('" string="true">', "text"), ('" string="false">', "json")),
        value=MarkPair("", "</｜DSML｜parameter>"),
    ),
    written=(_dsml("function_calls"),),
    tokens=("｜DSML｜",),
)
DEEPSEEK_V4 = replace(
    DEEPSEEK_V32,
    names=("deepseek_v4",),
    models="DeepSeek V4",
    recognised=Recognised(all_of=("DSML", "tool_calls>")),
    block=MarkPair("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    written=(_dsml("tool_calls"),),
)
