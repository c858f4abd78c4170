"""GLM-4.5 to 5."""

from tests.shared.formats.case import NOW, PARIS, Case, FormatCases

LINES = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
)
TIGHT = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"

CASES = FormatCases(
    tools="glm45",
    thoughts="glm45",
    templates=("GLM-4.6", "GLM-4.7-Flash", "inclusionai-ling-3.0-flash", "poolside-Laguna-XS.2"),
    called=("Spark2.5", "poolside-Laguna-XS-2.1", "poolside-Laguna-S-2.1"),
    cases=(
        Case(LINES, calls=(PARIS,)),
        Case(f"\n{TIGHT}{TIGHT}", calls=(PARIS, PARIS)),
        Case(f"<think>Hm.</think>So:\n{LINES}\n", thought="Hm.", said="So:\n", calls=(PARIS,)),
        Case(
            "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
            "<arg_key>city</arg_key>\n<arg_value>3</arg_value>\n"
            '<arg_key>tags</arg_key>\n<arg_value>["a\n"]</arg_value>\n</tool_call>',
            calls=(("get_weather", {"days": 3, "city": "3", "tags": ["a\n"]}),),
        ),
        Case("<tool_call>now</tool_call>", calls=(NOW,)),
        Case("<tool_call>now\n</tool_call>", calls=(NOW,)),
        Case("<tool_call>what is it?</tool_call>", said="<tool_call>what is it?</tool_call>"),
    ),
)
GLM4 = FormatCases(
    tools="glm4",
    thoughts="",
    cases=(
        Case('get_weather\n{"city": "Paris"}', calls=(PARIS,)),
        Case('\nget_weather \n{"city": "Paris"}\n', calls=(PARIS,)),
        Case("get_weather shows it.\n{}", said="get_weather shows it.\n{}"),
        Case('other\n{"city": "Paris"}', said='other\n{"city": "Paris"}'),
        Case("It rains.", said="It rains."),
    ),
)
