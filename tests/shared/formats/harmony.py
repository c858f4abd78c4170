"""gpt-oss."""

from tests.shared.formats.case import PARIS, SUM, Case, FormatCases

START = "<|start|>assistant"


def message(head: str, text: str) -> str:
    return f"{head}<|message|>{text}"


THINKS = message("<|channel|>analysis", "Hm.")
FINAL = message("<|channel|>final", "Yes.")
WEATHER = message(
    "<|channel|>commentary to=functions.get_weather <|constrain|>json", '{"city": "Paris"}'
)
ADD = message(" to=functions.add<|channel|>commentary json", '{"a": 1, "b": [2.5, "x"]}')

CASES = FormatCases(
    tools="openai",
    thoughts="openai",
    templates=("openai-gpt-oss-120b",),
    cases=(
        Case(f"{THINKS}<|end|>{START}{FINAL}", thought="Hm.", said="Yes.", prompt=START),
        Case(f"{THINKS}<|end|>{START}{WEATHER}", thought="Hm.", calls=(PARIS,), prompt=START),
        Case(ADD, calls=(SUM,), prompt=START),
        Case(
            f"{message('<|channel|>commentary', 'I look. ')}<|end|>{START}{WEATHER}<|call|>"
            f"{START}{ADD}<|call|>",
            said="I look. ",
            calls=(PARIS, SUM),
            prompt=START,
        ),
        Case(f"{THINKS}{FINAL}<|return|>", thought="Hm.", said="Yes."),
        Case("Yes.", said="Yes.", prompt=f"{START}<|channel|>final<|message|>"),
        Case("Hm.<|end|>", thought="Hm.", prompt=f"{START}<|channel|>analysis<|message|>"),
        Case("Just so.", said="Just so."),
        Case(f"{THINKS}<|end|>{START}<|channel|>fin", thought="Hm."),
    ),
)
