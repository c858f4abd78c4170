"""Answers of Command R7B, A and later, in blocks for thoughts, calls and words, and calls of
Command R and R+:

<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}
]<|END_ACTION|>

Action:
```json
[
    {
        "tool_name": "get_weather",
        "parameters": {"city": "Paris"}
    }
]```
"""

from penstock.parsing.format import CallFormat, MarkPair, Recognised, ThoughtFormat, Written

_RECOGNISED = Recognised(all_of=("<|START_ACTION|>",), families=("cohere2",))

COMMAND = CallFormat(
    names=("cohere_command3", "command_r7b"),
    models="Command R7B, Command A",
    recognised=_RECOGNISED,
    call=MarkPair("<|START_ACTION|>", "<|END_ACTION|>"),
    bodies=("list", "object"),
    keys=(("tool_name",), ("parameters",)),
    written=(
        Written(
            before="<|START_ACTION|>[\n    ",
            begin='{"tool_call_id": "#", "tool_name": "',
            index="#",
            head_end='", "parameters": ',
            end="}",
            between=",\n    ",
            after="\n]<|END_ACTION|>",
        ),
    ),
    tokens=("<|START_ACTION|>", "<|END_ACTION|>"),
)
COMMAND_THOUGHTS = ThoughtFormat(
    names=("cohere_command3", "command_r7b"),
    models="Command R7B, Command A",
    recognised=_RECOGNISED,
    block=MarkPair("<|START_THINKING|>", "<|END_THINKING|>"),
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    answer=MarkPair("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    tokens=(
        *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        *("<|START_TEXT|>", "<|END_TEXT|>"),
    ),
)
COMMAND_R = CallFormat(
    names=("command_r",),
    models="Command R, Command R+",
    recognised=Recognised(
        all_of=("Action:", "```json", "tool_name"), none_of=("<|START_ACTION|>",)
    ),
    call=MarkPair("Action:"),
    bodies=("list",),
    keys=(("tool_name",), ("parameters",)),
    fenced=True,
    only_known=True,
)
