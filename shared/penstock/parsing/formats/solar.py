"""Answers of Solar Open: messages of thoughts, words and calls, whose ids are its own:

<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5\
<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|calls|>
"""

from penstock.parsing.format import (
    NAME,
    CallFormat,
    CallHead,
    MarkPair,
    Recognised,
    ThoughtFormat,
)

_RECOGNISED = Recognised(all_of=("<|tool_call:begin|>", "<|tool_call:args|>"))

SOLAR_OPEN = CallFormat(
    names=("solar_open",),
    models="Solar Open",
    recognised=_RECOGNISED,
    block=MarkPair("<|tool_calls|>", "<|calls|>"),
    call=MarkPair("<|tool_call:begin|>", "<|tool_call:end|>"),
    bodies=("named",),
    head=CallHead(
        pattern=rf"(?P<id>[\w.:\-]{{1,64}})<\|tool_call:name\|>(?P<name>{NAME})",
        ends=("<|tool_call:args|>",),
    ),
    tokens=(
        *("<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:name|>"),
        *("<|tool_call:args|>", "<|tool_call:end|>"),
    ),
)
SOLAR_THOUGHTS = ThoughtFormat(
    names=("solar_open",),
    models="Solar Open",
    recognised=_RECOGNISED,
    block=MarkPair("<|think|>", "<|end|>"),
    dropped=("<|begin|>assistant", "<|content|>", "<|end|>"),
    answer=MarkPair("<|begin|>assistant<|content|>", "<|end|>"),
    tokens=("<|think|>", "<|end|>", "<|begin|>", "<|content|>"),
)
