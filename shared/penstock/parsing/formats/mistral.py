"""Calls as Mistral's models write them, of the older form and the newer:

[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]
[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
"""

from penstock.parsing.format import CallFormat, CallHead, MarkPair, Recognised, Written

MISTRAL = CallFormat(
    names=("mistral",),
    models="Mistral, Ministral, Devstral",
    recognised=Recognised(all_of=("[TOOL_CALLS]",)),
    call=MarkPair("[TOOL_CALLS]"),
    bodies=("list", "object", "named"),
    head=CallHead(
        pattern=r"(?P<name>[\w.-]{1,256})\s{0,16}(?:\[CALL_ID\][\w-]{1,64})?(?:\[ARGS\])?",
        before=("{",),
    ),
    tokens=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    short_ids=True,
    written=(
        Written(begin="[TOOL_CALLS]", head_end="[ARGS]", end="", when="[ARGS]"),
        Written(
            before="[TOOL_CALLS][",
            begin='{"name": "',
            head_end='", "arguments": ',
            end="}",
            between=", ",
            after="]",
        ),
    ),
)
