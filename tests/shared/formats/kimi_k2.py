"""Kimi K2, and the thoughts of Kimi-VL Thinking."""

from tests.shared.formats.case import PARIS, SUM, Case, FormatCases

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def one(call_id: str, arguments: str) -> str:
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


WEATHER = one("functions.get_weather:0", '{"city": "Paris"}')
ADD = one("functions.add:1", '{"a": 1, "b": [2.5, "x"]}')

CASES = FormatCases(
    tools="kimi_k2",
    thoughts="kimi_k2",
    templates=("moonshotai-Kimi-K2",),
    called=("Kimi-K2-Instruct", "Kimi-K2-Thinking"),
    cases=(
        Case(f"{BEGIN}{WEATHER}{END}", calls=(PARIS,), ids=("functions.get_weather:0",)),
        Case(
            f"Both. {BEGIN}{WEATHER}\n{ADD}{END} Done.",
            said="Both. Done.",
            calls=(PARIS, SUM),
            ids=("functions.get_weather:0", "functions.add:1"),
        ),
        Case(f"<think>Hm.</think>{BEGIN}{WEATHER}", thought="Hm.", calls=(PARIS,)),
        Case(
            f"{BEGIN}{one('get weather', '{}')} no",
            said=f"{BEGIN}{one('get weather', '{}')} no",
        ),
    ),
)

KIMI_VL = FormatCases(
    tools="",
    thoughts="kimi",
    cases=(
        Case("◁think▷Hm.\nWell.◁/think▷It rains.", said="It rains.", thought="Hm.\nWell."),
        Case("\n◁think▷\nHm.\n◁/think▷\n\nIt rains. ◁", said="It rains. ◁", thought="Hm."),
        Case("Hm. ◁/thin ▷◁/think▷So.", said="So.", thought="Hm. ◁/thin ▷", prompt="◁think▷"),
        Case("◁think it rains.", said="◁think it rains."),
        Case("It rains.", said="It rains."),
        Case("◁think▷Hm.", thought="Hm."),
    ),
)
