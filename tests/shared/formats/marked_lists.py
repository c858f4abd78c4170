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
ENTRY = '{"get_weather": {"city": "Paris"}}'
APERTUS = FormatCases(
    tools="apertus",
    thoughts="apertus",
    called=("Apertus-8B-Instruct",),
    cases=(
        Case(
            f'<|inner_prefix|>Hm.<|inner_suffix|>So:<|tools_prefix|>[{ENTRY}, {{"now": {{}}}}]'
            "<|tools_suffix|>",
            "So:",
            "Hm.",
            (PARIS, NOW),
        ),
        Case(
            '<|tools_prefix|>[{ "add" : {"a": 1, "b": [2.5, "x"]} }]<|tools_suffix|>',
            calls=(SUM,),
        ),
        Case('<|tools_prefix|>[{"now": {}', calls=(NOW,)),
        Case("<|tools_prefix|>[1]", said="<|tools_prefix|>[1]"),
        Case('<|tools_prefix|>[{"now": 1}]', said='<|tools_prefix|>[{"now": 1}]'),
    ),
)
COMMAND_R = FormatCases(
    tools="command_r",
    thoughts="",
    called=("CohereForAI-c4ai-command-r-plus-tool_use",),
    cases=(
        Case(
            'Action: ```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": '
            '{\n            "city": "Paris"\n        }\n    },\n'
            '    {"tool_name": "now", "parameters": {}}'
            "\n]```",
            calls=(PARIS, NOW),
        ),
        Case(
            'I will look.\nAction:\n```json\n[{"tool_name": "now", "parameters": {}}]```\n',
            "I will look.\n",
            calls=(NOW,),
        ),
        Case("Action: wait.", said="Action: wait."),
        Case(
            'Action: ```json\n[{"tool_name": "directly-answer", "parameters": {}}]```',
            said='Action: ```json\n[{"tool_name": "directly-answer", "parameters": {}}]```',
        ),
    ),
)
GIGACHAT30 = FormatCases(
    tools="gigachat30",
    thoughts="",
    called=("GigaChat3-10B-A1.8B",),
    cases=(
        Case(
            f"So:<|message_sep|>\n\nfunction call<|role_sep|>\n{CITY}", said="So:", calls=(PARIS,)
        ),
        Case(f"function call<|role_sep|>\n{CITY}", calls=(PARIS,)),
        Case("A function call is made.", said="A function call is made."),
    ),
)
NEMOTRON_MINI = FormatCases(
    tools="nemotron_mini",
    thoughts="",
    cases=(
        Case(
            f"<toolcall> {CITY} </toolcall> <toolcall> {NOTHING} </toolcall> ", calls=(PARIS, NOW)
        ),
    ),
)
SOLAR_CALL = (
    "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>"
    '{"city": "Paris"}<|tool_call:end|><|tool_call:begin|>f6g7h8i9j0<|tool_call:name|>now'
    "<|tool_call:args|>{}<|tool_call:end|><|calls|>"
)
SOLAR = FormatCases(
    tools="solar_open",
    thoughts="solar_open",
    called=("upstage-Solar-Open-100B",),
    cases=(
        Case(
            f"<|think|>Hm.<|end|><|begin|>assistant{SOLAR_CALL}",
            thought="Hm.",
            calls=(PARIS, NOW),
            prompt="<|begin|>assistant",
            ids=("a1b2c3d4e5", "f6g7h8i9j0"),
        ),
        Case(
            "<|think|>Hm.<|end|><|begin|>assistant<|content|>It rains.<|end|>",
            thought="Hm.",
            said="It rains.",
        ),
        Case(
            f"<|content|>So:<|end|><|begin|>assistant{SOLAR_CALL}",
            said="So:",
            calls=(PARIS, NOW),
            prompt="<|begin|>assistant<|think|><|end|><|begin|>assistant",
        ),
    ),
)
MARKED_LISTS = (
    *(TOOL_CALLS, APRIEL, NEMOTRON, GRANITE, PHI4, INTERNLM),
    *(GIGACHAT, COMMAND, APERTUS, COMMAND_R, GIGACHAT30, NEMOTRON_MINI, SOLAR),
)
