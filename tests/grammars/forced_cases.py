"""Calls as each model writes them, and what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest

TOOLS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
            "when": {"anyOf": [{"$ref": "#/$defs/Day"}, {"type": "null"}]},
        },
        "required": ["city"],
        "$defs": {"Day": {"type": "object", "properties": {"day": {"type": "integer"}}}},
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
WEATHER = {"city": 'São "Paulo" {', "days": 3}
JSON = json.dumps(WEATHER, ensure_ascii=False)


def keyed(begin: str, end: str, last: str, city: str = WEATHER["city"]) -> str:  # type: ignore[assignment]
    return f"{begin.format('city')}{city}{end}{begin.format('days')}3{end}{last}"


QWEN = keyed("<parameter={}>\n", "\n</parameter>\n", "</function>\n</tool_call>")
GLM = keyed("<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>")
GLM47 = keyed("<arg_key>{}</arg_key><arg_value>", "</arg_value>", "</tool_call>")
HY3 = keyed(
    "<arg_key:opensource>{}</arg_key:opensource>\n<arg_value:opensource>",
    "</arg_value:opensource>\n",
    "</tool_call:opensource>\n",
)
K3 = (
    f'<|open|>argument key="city" type="string"<|sep|>{WEATHER["city"]}<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
)
MINIMAX = keyed('<parameter name="{}">', "</parameter>\n", "</invoke>")
SEED = keyed("<parameter={}>", "</parameter>\n", "</function>\n</seed:tool_call>")
INTERNLM = "<|action_start|><|plugin|>\n"
DEEPSEEK = "<｜tool▁call▁begin｜>"


def dsml(block: str) -> tuple[str, str, str, str]:
    city, end = WEATHER["city"], "</｜DSML｜parameter>\n"
    return (
        "",
        f'<｜DSML｜{block}>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city"'
        f' string="true">{city}{end}<｜DSML｜parameter name="days" string="false">3{end}'
        "</｜DSML｜invoke>",
        "\n",
        f'<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜{block}>',
    )


def objects(begin: str, between: str, end: str, template: str = "") -> tuple[str, str, str, str]:
    """Calls as objects, with this around them."""
    one = f'{begin}{{"name": "get_weather", "arguments": {JSON}}}'
    return template, one, between, f'{{"name": "now", "arguments": {{}}}}{end}'


def python(begin: str, between: str, end: str) -> tuple[str, str, str, str]:
    city = json.dumps(WEATHER["city"], ensure_ascii=False)
    return "", f"{begin}get_weather(city={city}, days=3)", between, f"now(){end}"


def gemma(begin: str, quote: str, end: str) -> tuple[str, str, str, str]:
    city = f"{quote}{WEATHER['city']}{quote}"
    one = f"{begin}call:get_weather{{city:{city},days:3}}{end}"
    return "", one, "", f"{begin}call:now{{}}{end}"


WRITTEN: dict[str, list[tuple[str, str, str, str]]] = {
    "hermes": [
        (
            "",
            f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>',
            "\n",
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        )
    ],
    "llama3_json": [
        (
            "",
            f'{{"name": "get_weather", "parameters": {JSON}}}',
            "; ",
            '{"name": "now", "parameters": {}}',
        )
    ],
    "mistral": [
        ("[ARGS]", f"[TOOL_CALLS]get_weather[ARGS]{JSON}", "", "[TOOL_CALLS]now[ARGS]{}"),
        (
            "",
            f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {JSON}}}',
            ", ",
            '{"name": "now", "arguments": {}}]',
        ),
    ],
    "qwen3_coder": [
        (
            "",
            f"<tool_call>\n<function=get_weather>\n{QWEN}",
            "\n",
            "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        )
    ],
    "glm45": [
        ("", f"<tool_call>get_weather\n{GLM}", "\n", "<tool_call>now\n</tool_call>"),
        (
            "</arg_key><arg_value>",
            f"<tool_call>get_weather{GLM47}",
            "",
            "<tool_call>now</tool_call>",
        ),
    ],
    "kimi_k2": [
        (
            "",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|>",
            "",
            "<|tool_call_begin|>functions.now:12<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
        )
    ],
    "deepseek_v3": [
        (
            "",
            f"<｜tool▁calls▁begin｜>{DEEPSEEK}function<｜tool▁sep｜>get_weather\n```json\n{JSON}\n```"
            "<｜tool▁call▁end｜>",
            "\n",
            f"{DEEPSEEK}function<｜tool▁sep｜>now\n```json\n{{}}\n```<｜tool▁call▁end｜>"
            "<｜tool▁calls▁end｜>",
        )
    ],
    "kimi_k3": [
        (
            "",
            "<|close|>response<|sep|><|open|>tools<|sep|>"
            f'<|open|>call tool="get_weather" index="1"<|sep|>{K3}',
            "",
            '<|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        )
    ],
    "hy_v3": [
        (
            "",
            f"<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n{HY3}",
            "",
            "<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n"
            "</tool_calls:opensource>",
        )
    ],
    "apertus": [
        (
            "",
            f'<|tools_prefix|>[{{"get_weather": {JSON}}}',
            ", ",
            '{"now": {}}]<|tools_suffix|>',
        )
    ],
    "deepseek_v31": [
        (
            "",
            f"<｜tool▁calls▁begin｜>{DEEPSEEK}get_weather<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>",
            "",
            f"{DEEPSEEK}now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        )
    ],
    "deepseek_v32": [dsml("function_calls")],
    "deepseek_v4": [dsml("tool_calls")],
    "minimax_m2": [
        (
            "",
            f'<minimax:tool_call>\n<invoke name="get_weather">\n{MINIMAX}',
            "\n",
            '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        )
    ],
    "seed_oss": [
        (
            "",
            f"<seed:tool_call>\n<function=get_weather>\n{SEED}",
            "\n",
            "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        )
    ],
    "cohere_command3": [
        (
            "",
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
            f'"parameters": {JSON}}}',
            ",\n    ",
            '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        )
    ],
    "jamba": [
        objects("<tool_calls>[", ", ", "]</tool_calls>"),
        objects("<tool_calls>\n", "\n", "\n</tool_calls>", "<beginning_of_sentence>"),
    ],
    "nemotron_json": [objects("<TOOLCALL>[", ", ", "]</TOOLCALL>")],
    "granite": [objects("<|tool_call|>[", ", ", "]")],
    "phi4_mini_json": [objects("functools[", ", ", "]")],
    "gigachat3": [objects("<|function_call|>", "\n<|function_call|>", "")],
    "internlm": [
        (
            "",
            f'{INTERNLM}{{"name": "get_weather", "parameters": {JSON}}}<|action_end|>',
            "\n",
            f'{INTERNLM}{{"name": "now", "parameters": {{}}}}<|action_end|>',
        )
    ],
    "lfm2": [python("<|tool_call_start|>[", ", ", "]<|tool_call_end|>")],
    "llama4_pythonic": [python("[", ", ", "]")],
    "olmo3": [python("<function_calls>\n", "\n", "\n</function_calls>")],
    "gemma4": [gemma("<|tool_call>", '<|"|>', "<tool_call|>")],
    "functiongemma": [gemma("<start_function_call>", "<escape>", "<end_function_call>")],
    "functionary_v3_llama_31": [
        ("", f"<function=get_weather>{JSON}</function>", "", "<function=now>{}</function>")
    ],
}
"""What the template's text has, a call, what stands between, and another call, by format."""
CASES = [
    pytest.param(name, *case, id=f"{name}-{index}")
    for name, cases in WRITTEN.items()
    for index, case in enumerate(cases)
]
