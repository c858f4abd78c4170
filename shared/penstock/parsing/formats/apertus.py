"""Answers of Apertus. The name of a call is the key of its arguments:

<|inner_prefix|>Hm.<|inner_suffix|><|tools_prefix|>[{"get_weather": {"city": "Paris"}}]\
<|tools_suffix|>
"""

from penstock.parsing.format import CallFormat, MarkPair, Recognised, ThoughtFormat, Written

_CALL = MarkPair("<|tools_prefix|>", "<|tools_suffix|>")
_INNER = MarkPair("<|inner_prefix|>", "<|inner_suffix|>")

APERTUS = CallFormat(
    names=("apertus",),
    models="Apertus",
    recognised=Recognised(all_of=tuple(_CALL)),
    call=_CALL,
    bodies=("list", "object"),
    keys=None,
    written=(
        Written(
            before="<|tools_prefix|>[",
            begin='{"',
            head_end='": ',
            end="}",
            between=", ",
            after="]<|tools_suffix|>",
        ),
    ),
    tokens=tuple(_CALL),
)
APERTUS_THOUGHTS = ThoughtFormat(
    names=("apertus",),
    models="Apertus",
    recognised=Recognised(all_of=tuple(_INNER)),
    block=_INNER,
    tokens=tuple(_INNER),
)
