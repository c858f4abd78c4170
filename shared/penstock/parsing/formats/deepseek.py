"""Calls as DeepSeek V3 and R1 write them, then V3.1:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
```json
{"city": "Paris"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}\
<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from penstock.parsing.format import CallFormat, CallHead, MarkPair, Recognised

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
    tokens=_TOKENS,
)
