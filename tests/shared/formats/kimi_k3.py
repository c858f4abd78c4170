"""Kimi K3."""

from tests.shared.formats.case import NOW, PARIS, SUM, Case, FormatCases


def channel(name: str, *inside: str, head: str = "") -> str:
    return f"<|open|>{name}{head}<|sep|>{''.join(inside)}<|close|>{name}<|sep|>"


def argument(key: str, kind: str, value: str) -> str:
    return channel("argument", value, head=f' key="{key}" type="{kind}"')


def call(name: str, index: int, *inside: str) -> str:
    return channel("call", *inside, head=f' tool="{name}" index="{index}"')


WEATHER = call("get_weather", 1, argument("city", "string", "Paris"))
ADD = call("add", 2, argument("a", "number", "1"), argument("b", "array", '[2.5, "x"]'))
PROMPT = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
END = "<|close|>message<|sep|>"

CASES = FormatCases(
    tools="kimi_k3",
    thoughts="kimi_k3",
    called=("Kimi-K3",),
    cases=(
        Case(
            f"Hm.<|close|>think<|sep|>{channel('response')}{channel('tools', WEATHER, ADD)}{END}",
            thought="Hm.",
            calls=(PARIS, SUM),
            prompt=PROMPT,
        ),
        Case(
            f"Both.<|close|>response<|sep|>{channel('tools', call('now', 1))}",
            said="Both.",
            calls=(NOW,),
            prompt='<|open|>message role="assistant"<|sep|><|open|>response<|sep|>',
        ),
        Case(
            channel("think", "Hm.") + channel("response", "It rains.") + END,
            thought="Hm.",
            said="It rains.",
        ),
        Case(
            channel(
                "tools",
                call(
                    "get_weather",
                    1,
                    argument("city", "string", ' "a"\n&quot;'),
                    argument("a&quot;&amp;quot;", "null", "null"),
                    argument("sure", "boolean", "true"),
                    argument("deep", "object", '{"x": [1, {"y": "é"}]}'),
                ),
            ),
            calls=(
                (
                    "get_weather",
                    {
                        "city": ' "a"\n&quot;',
                        'a"&quot;': None,
                        "sure": True,
                        "deep": {"x": [1, {"y": "é"}]},
                    },
                ),
            ),
        ),
        Case(
            channel(
                "tools",
                call("add", 1, channel("json", '{"a": 1, "b": [2.5, "x"]}', head=' type="object"')),
                WEATHER,
            ),
            calls=(SUM, PARIS),
        ),
    ),
)
