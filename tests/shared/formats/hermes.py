"""Hermes and Qwen."""

from tests.shared.formats.case import NOW, PARIS, SUM, Case, FormatCases

CITY = '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Paris"\n  }\n}'
ADD = '{"name": "add", "arguments": {"a": 1, "b": [2.5, "x"]}}'
OTHER = '{"name": "other", "arguments": {}}'
CODE = '```json\n{"colour": "red"}\n```'

CASES = FormatCases(
    tools="hermes",
    thoughts="qwen3",
    templates=("Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen-QwQ-32B", "MiMo-VL"),
    called=(
        *("Bielik-11B-v3.0-Instruct", "ibm-granite-granite-4.0", "ibm-granite-granite-4.1"),
        *("Reka-Edge", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"),
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    ),
    cases=(
        Case(f"<tool_call>\n{CITY}\n</tool_call>", calls=(PARIS,)),
        Case(
            f"<think>\nHm.\n</think>\n\nSo:\n<tool_call>{ADD}</tool_call>\n<tool_call>\n"
            '{"name": "now", "arguments": {}}\n</tool_call>',
            "So:\n",
            "Hm.",
            (SUM, NOW),
        ),
        Case(f"<tool_call>{OTHER}</tool_call>", calls=(("other", {}),)),
        # Without marks: as Qwen2.5-Coder-0.5B-Instruct writes it.
        Case(f"```json\n{CITY}\n```", calls=(PARIS,)),
        Case(ADD, calls=(SUM,)),
        Case(f"<think>Hm.</think>\n{ADD}", thought="Hm.", calls=(SUM,)),
        Case(f"{ADD}\n{CITY}\n", calls=(SUM, PARIS)),
        Case(f"{ADD}\n{OTHER}", said=OTHER, calls=(SUM,)),
        Case(f"{ADD}\nSo.\n{CITY}", said=f"So.\n{CITY}", calls=(SUM,)),
        Case(f"{ADD}\n{CITY}\n<tool_call>{ADD}</tool_call>", calls=(SUM, PARIS, SUM)),
        Case(OTHER, said=OTHER),
        Case('{"name": "add"}', said='{"name": "add"}'),
        Case(CODE, said=CODE),
        Case(f"{CODE}\n<tool_call>{ADD}</tool_call>", said=f"{CODE}\n", calls=(SUM,)),
    ),
)
