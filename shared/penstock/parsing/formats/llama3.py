"""Calls as Llama 3.1 and later write them: the answer is one JSON object, or several with `;` or
`,` between them, with or without the mark:

<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}

Since an object may just as well be content, it is a call only if the request offers a function of
that name.
"""

from penstock.parsing.format import CallFormat, MarkPair, Recognised, Written

LLAMA3_JSON = CallFormat(
    names=("llama3_json",),
    models="Llama 3.1, 3.2 and 3.3",
    recognised=Recognised(
        any_of=("<|python_tag|>", "Environment: ipython"), none_of=("<function=",)
    ),
    call=MarkPair("<|python_tag|>"),
    bodies=("object",),
    bare=True,
    only_known=True,
    needs_arguments=True,
    separators=";,",
    written=(Written(begin='{"name": "', head_end='", "parameters": ', end="}", between="; "),),
    tokens=("<|python_tag|>",),
)
