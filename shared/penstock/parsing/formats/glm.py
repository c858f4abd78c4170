"""Calls as GLM-4.5 and later write them, with line breaks (4.5, 4.6) or without (4.7, 5), and as
GLM-4 did, where a call is all of an answer:

<tool_call>get_weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
</tool_call>

get_weather
{"city": "Paris"}
"""

from penstock.parsing.format import (
    CallFormat,
    CallHead,
    KeyedValues,
    MarkPair,
    Recognised,
    Written,
)

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
