"""Families that write objects, or lists of them, between their own marks."""

from tests.shared.formats.case import NOW, PARIS, SUM, Case, FormatCases

ADD = '{"name": "add", "arguments": {"a": 1, "b": [2.5, "x"]}}'
CITY = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
NOTHING = '{"name": "now", "arguments": {}}'
COHERE = '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}'

TOOL_CALLS = FormatCases(
    tools="jamba",
    thoughts="",
    templates=("MiniMax-M1", "unsloth-Apriel-1.5", "Apriel-1.6-15b-Thinker-fixed"),
    cases=(
        Case(f"<tool_calls>\n{CITY}\n{NOTHING}\n</tool_calls>", calls=(PARIS, NOW)),
        Case(f"So:\n<tool_calls>[{CITY}, {ADD}]</tool_calls>", said="So:\n", calls=(PARIS, SUM)),
        Case("<tool_calls>none</tool_calls>", said="<tool_calls>none</tool_calls>"),
    ),
)
APRIEL = FormatCases(
    tools="",
    thoughts="apriel",
    cases=(
        Case(
            "Hm.\n[BEGIN FINAL RESPONSE]\nIt rains.\n[END FINAL RESPONSE]",
            thought="Hm.",
            said="It rains.\n",
            prompt="\nHere are my reasoning steps:\n",
        ),
        Case("It rains.", said="It rains."),
    ),
)
NEMOTRON = FormatCases(
    tools="nemotron_json",
    thoughts="qwen3",
    templates=("NVIDIA-Nemotron-Nano-v2",),
    cases=(
        Case(f"<TOOLCALL>[{CITY}, {ADD}]</TOOLCALL>", calls=(PARIS, SUM)),
        Case(f"<think>Hm.</think><TOOLCALL>[{CITY}]</TOOLCALL>", thought="Hm.", calls=(PARIS,)),
    ),
)
GRANITE = FormatCases(
    tools="granite",
    thoughts="granite",
    recognised=("ibm-granite-granite-3.3-2B-Instruct",),
    cases=(
        Case(f"<|tool_call|>[{CITY}, {ADD}]", calls=(PARIS, SUM)),
        Case(f"<|tool_call|> {CITY}", calls=(PARIS,)),
        Case(
            f"Here is my thought process:\nHm.\nHere is my response:\nSo:<|tool_call|>[{CITY}]",
            thought="Hm.",
            said="So:",
            calls=(PARIS,),
        ),
    ),
)
PHI4 = FormatCases(
    tools="phi4_mini_json",
    thoughts="",
    cases=(
        Case(f"functools[{CITY}, {ADD}]", calls=(PARIS, SUM)),
        Case("functools[1] and more", said="functools[1] and more"),
    ),
)
INTERNLM = FormatCases(
    tools="internlm",
    thoughts="",
    cases=(
        Case(f"So:<|action_start|><|plugin|>\n{CITY}<|action_end|>\n", said="So:", calls=(PARIS,)),
    ),
)
GIGACHAT = FormatCases(
    tools="gigachat3",
    thoughts="",
    templates=("GigaChat3.1-10B-A1.8B",),
    cases=(Case(f"So:<|function_call|>{CITY}", said="So:", calls=(PARIS,)),),
)
COMMAND = FormatCases(
    tools="command_r7b",
    thoughts="command_r7b",
    templates=("Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"),
    cases=(
        Case(
            f"<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {COHERE},\n    "
            f"{COHERE}\n]<|END_ACTION|>",
            thought="Hm.",
            calls=(PARIS, PARIS),
        ),
        Case(
            "Hm.<|END_THINKING|><|START_RESPONSE|>It rains.<|END_RESPONSE|>",
            thought="Hm.",
            said="It rains.",
            prompt="<|CHATBOT_TOKEN|><|START_THINKING|>",
        ),
        Case(
            "<|START_RESPONSE|>It rains.<|END_RESPONSE|>",
            said="It rains.",
            prompt="<|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>",
        ),
    ),
)
MARKED_LISTS = (
    *(TOOL_CALLS, APRIEL, NEMOTRON, GRANITE, PHI4, INTERNLM),
    *(GIGACHAT, COMMAND),
)
