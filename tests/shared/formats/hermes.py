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
        Case(f"{ADD}\nSo.\n{CITY}", said="So.\n", calls=(SUM, PARIS)),
        # Several in a list, or in one block or more, behind a sentence or not.
        Case(f"[{ADD}, {CITY}]", calls=(SUM, PARIS)),
        Case(f"Both:\n[{ADD},\n {CITY}]\nSo.", said="Both:\nSo.", calls=(SUM, PARIS)),
        Case(f"```json\n[\n{CITY},\n{ADD}\n]\n```", calls=(PARIS, SUM)),
        Case(f"Both:\n\n```json\n{CITY}\n{ADD}\n```\n", said="Both:\n\n", calls=(PARIS, SUM)),
        Case(f"A:\n```json\n{CITY},\n{ADD}\n```\nB", said="A:\nB", calls=(PARIS, SUM)),
        Case(f"```json\n{CITY}\n```\n\n```\n{ADD}\n```", calls=(PARIS, SUM)),
        Case(f"<tool_call>\n[{CITY}, {ADD}]\n</tool_call>", calls=(PARIS, SUM)),
        Case(f"{ADD}, so", said=", so", calls=(SUM,)),
        # What is no call: other names, other languages' code, and what stands within a line.
        Case(
            f"Both:\n```json\n[{OTHER}, {OTHER}]\n```",
            said=f"Both:\n```json\n[{OTHER}, {OTHER}]\n```",
        ),
        Case(
            f"A:\n```python\n{ADD}\n```\n{ADD}", said=f"A:\n```python\n{ADD}\n```\n", calls=(SUM,)
        ),
        Case(f"{CODE}\n[1]\n{CODE}\nA", said=f"{CODE}\n[1]\n{CODE}\nA"),
        Case(f"A {ADD}", said=f"A {ADD}"),
        Case(f"A\n``` {ADD}\n``", said=f"A\n``` {ADD}\n``"),
        Case(f"{ADD}\n{CITY}\n<tool_call>{ADD}</tool_call>", calls=(SUM, PARIS, SUM)),
        Case(OTHER, said=OTHER),
        Case('{"name": "add"}', said='{"name": "add"}'),
        Case(CODE, said=CODE),
        Case(f"{CODE}\n<tool_call>{ADD}</tool_call>", said=f"{CODE}\n", calls=(SUM,)),
    ),
)
