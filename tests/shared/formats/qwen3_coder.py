"""Qwen3-Coder and Qwen3.5."""

from tests.shared.formats.case import NOW, PARIS, Case, FormatCases

ONE = """<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>"""
EVERY = """<tool_call>
<function=get_weather>
<parameter=city>
 São "Paulo"
\\ 2
</parameter>
<parameter=days>
3
</parameter>
<parameter=deep>
{"a": [1, null, {"b": "é"}]}
</parameter>
<parameter=tags>
['x', "y"]
</parameter>
<parameter=sure>
True
</parameter>
<parameter=unit>
null
</parameter>
<parameter=unknown>
3.5
</parameter>
</function>
</tool_call>"""

CASES = FormatCases(
    tools="qwen3_coder",
    thoughts="qwen3",
    templates=(
        "Qwen3-Coder",
        "Qwen3.5-4B",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "StepFun3.5-Flash",
    ),
    cases=(
        Case(ONE, calls=(PARIS,)),
        Case(
            ONE.replace("=city>\nParis", '=deep>\n{"a": "\\ud83d\n"}'),
            calls=(("get_weather", {"deep": {"a": "?\n"}}),),
        ),
        Case(f"I'll look.\n\n{ONE}\n{ONE}\n", said="I'll look.\n\n", calls=(PARIS, PARIS)),
        Case(
            EVERY,
            calls=(
                (
                    "get_weather",
                    {
                        "city": ' São "Paulo"\n\\ 2',
                        "days": 3,
                        "deep": {"a": [1, None, {"b": "é"}]},
                        "tags": ["x", "y"],
                        "sure": True,
                        "unit": None,
                        "unknown": 3.5,
                    },
                ),
            ),
        ),
        Case("<tool_call>\n<function=now>\n</function>\n</tool_call>", calls=(NOW,)),
        Case(ONE.removesuffix("\n</tool_call>"), calls=(PARIS,)),
        Case(
            ONE.replace("</tool_call>", "").replace("<tool_call>\n", "") + "Done.",
            said="Done.",
            calls=(PARIS,),
        ),
        Case(f"Hm.\n</think>\n\n{ONE}", thought="Hm.", calls=(PARIS,), prompt="<think>\n"),
        Case(f"<think>\n{ONE}\n</think>\nYes.", thought=ONE, said="Yes."),
        Case("<tool_call>no</tool_call>", said="<tool_call>no</tool_call>"),
        Case(
            "<tool_call>\n<function=get_weather>\nwhat?",
            said="<tool_call>\n<function=get_weather>\nwhat?",
        ),
        Case(
            "<tool_call><function=get_weather><parameter=city>Rome</parameter>"
            "<parameter=days>many</parameter></function></tool_call>",
            calls=(("get_weather", {"city": "Rome", "days": "many"}),),
        ),
    ),
)
