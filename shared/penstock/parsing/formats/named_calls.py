"""Formats whose calls are a function's name and then its arguments as a JSON object, and the
thoughts of the same families. DeepSeek's later releases write keys and values."""

from dataclasses import replace

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

# Calls as Kimi K2 writes them. Their ids are the model's own, numbered through a conversation:
#
# <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
# <|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>
KIMI_K2 = CallFormat(
    names=("kimi_k2",),
    models="Kimi K2",
    recognised=Recognised(
        all_of=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
    ),
    block=MarkPair("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    call=MarkPair("<|tool_call_begin|>", "<|tool_call_end|>"),
    bodies=("named",),
    head=CallHead(
        pattern=rf"(?P<id>(?:functions\.)?(?P<name>{NAME}):\d{{1,9}})",
        ends=("<|tool_call_argument_begin|>",),
    ),
    written=(
        Written(
            before="<|tool_calls_section_begin|>",
            begin="<|tool_call_begin|>functions.",
            head_end=":#<|tool_call_argument_begin|>",
            index="#",
            end="<|tool_call_end|>",
            after="<|tool_calls_section_end|>",
        ),
    ),
    tokens=(
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
)


_DEEPSEEK_BLOCK = MarkPair("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_TOKENS = (
    *_DEEPSEEK_BLOCK,
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)

# Calls as DeepSeek V3 and R1 write them, then V3.1:
#
# <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
# ```json
# {"city": "Paris"}
# ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
#
# <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}\
# <｜tool▁call▁end｜><｜tool▁calls▁end｜>
#
# and then V3.2 and V4, whose two blocks differ in the name `tool_calls`:
#
# <｜DSML｜function_calls>
# <｜DSML｜invoke name="get_weather">
# <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
# </｜DSML｜invoke>
# </｜DSML｜function_calls>
DEEPSEEK_V3 = CallFormat(
    names=("deepseek_v3",),
    models="DeepSeek V3 and R1",
    recognised=Recognised(all_of=("<｜tool▁sep｜>", "```json")),
    block=_DEEPSEEK_BLOCK,
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
    tokens=_DEEPSEEK_TOKENS,
)
DEEPSEEK_V31 = CallFormat(
    names=("deepseek_v31",),
    models="DeepSeek V3.1",
    recognised=Recognised(all_of=("<｜tool▁sep｜>",), none_of=("```json",)),
    block=_DEEPSEEK_BLOCK,
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
    tokens=_DEEPSEEK_TOKENS,
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


# Answers of Functionary 3.1, and of 3.2, whose prompt ends in the first mark; `all` is the user:
#
# <function=get_weather>{"city": "Paris"}</function>
#
# all
# I'll look.>>>get_weather
# {"city": "Paris"}
#
# Since a text may hold such marks, they are calls only of functions that the request offers.
FUNCTIONARY = CallFormat(
    names=("functionary_v3_llama_31",),
    models="Functionary 3.1",
    recognised=Recognised(all_of=("<function=", "<|python_tag|>"), none_of=("<parameter=",)),
    call=MarkPair("<function=", "</function>"),
    bodies=("named",),
    head=CallHead(ends=(">",)),
    written=(Written(begin="<function=", head_end=">", end="</function>"),),
)
FUNCTIONARY_V32 = CallFormat(
    names=("functionary_v3_llama_3",),
    models="Functionary 3.2",
    recognised=Recognised(all_of=(">>>all",)),
    call=MarkPair(">>>"),
    bodies=("named",),
    head=CallHead(ends=("\n",), content="all"),
    bare=True,
    only_known=True,
)


_SOLAR = Recognised(all_of=("<|tool_call:begin|>", "<|tool_call:args|>"))

# Answers of Solar Open: messages of thoughts, words and calls, whose ids are its own:
#
# <|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5\
# <|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|calls|>
SOLAR_OPEN = CallFormat(
    names=("solar_open",),
    models="Solar Open",
    recognised=_SOLAR,
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
    recognised=_SOLAR,
    block=MarkPair("<|think|>", "<|end|>"),
    dropped=("<|begin|>assistant", "<|content|>", "<|end|>"),
    answer=MarkPair("<|begin|>assistant<|content|>", "<|end|>"),
    tokens=("<|think|>", "<|end|>", "<|begin|>", "<|content|>"),
)
