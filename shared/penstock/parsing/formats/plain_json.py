"""Calls as models write them that were told no format of their own: the answer is a JSON object, or
an array of them, in a code fence or not. Only objects that name a function of the request are
calls; anything else is content.

[{"name": "get_weather", "arguments": {"city": "Paris"}}]
"""

from penstock.parsing.format import CallFormat

JSON = CallFormat(
    names=("json",),
    models="models without a format of their own",
    bodies=("object", "list"),
    bare=True,
    fenced=True,
    only_known=True,
    needs_arguments=True,
    space_stays=True,
)
