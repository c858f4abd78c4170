"""DeepSeek V3, R1 and V3.1."""

from tests.shared.formats.case import PARIS, SUM, Case, FormatCases

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def fenced(name: str, arguments: str) -> str:
    return (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        "<｜tool▁call▁end｜>"
    )


def plain(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


PARIS_JSON, SUM_JSON = '{"city": "Paris"}', '{"a": 1, "b": [2.5, "x"]}'

V3 = FormatCases(
    tools="deepseek_v3",
    thoughts="deepseek_r1",
    templates=("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",),
    recognised=("llama-cpp-deepseek-r1", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"),
    cases=(
        Case(
            f"Hm.</think>{BEGIN}{fenced('get_weather', PARIS_JSON)}\n"
            f"{fenced('add', SUM_JSON)}{END}",
            thought="Hm.",
            calls=(PARIS, SUM),
        ),
        Case(f"</think>Look.{BEGIN}{fenced('add', SUM_JSON)}{END}", said="Look.", calls=(SUM,)),
    ),
)
V31 = FormatCases(
    tools="deepseek_v31",
    thoughts="deepseek_v3",
    templates=("deepseek-ai-DeepSeek-V3.1",),
    cases=(
        Case(
            f"{BEGIN}{plain('get_weather', PARIS_JSON)}{plain('add', SUM_JSON)}{END}",
            calls=(PARIS, SUM),
            prompt="<think></think>",
        ),
        Case(
            f"Hm.</think>So:{BEGIN}{plain('add', SUM_JSON)}",
            thought="Hm.",
            said="So:",
            calls=(SUM,),
            prompt="<think>",
        ),
    ),
)
