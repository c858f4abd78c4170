"""The conversation that each client's loop has: what is asked, the tool, and what is told of it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from report import arguments

URL, MODEL, _ = arguments()
QUESTION = "What shall I wear in Paris, Rome and Oslo?"
NEXT = "And at night?"
WEATHER = {"Paris": "Rain, 9 °C", "Rome": "Sun", "Oslo": "Snow"}

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
"""The tool in OpenAI's shape, for clients that take it so."""


class Advice(BaseModel):
    """Where to take a coat."""

    city: str
    coat: bool


def rules(feature: str) -> str:
    """The system prompt of a feature, by which the test finds its prompts."""
    form = " Answer with an object." if "structured" in feature else ""
    return f"You are {feature}.{form}"


class Told:
    """What the client's user has seen. deltas: of text, where it is streamed."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.thoughts: list[str] = []
        self.deltas = 0

    def get_weather(self, city: str) -> str:
        """The weather in a city."""
        self.calls.append(city)
        return WEATHER[city]

    def with_answers(self, said: Any, after: Any) -> dict[str, Any]:
        """The result of a feature: and what was said in the end, and to the next question."""
        return {
            "calls": self.calls,
            "thoughts": self.thoughts,
            "deltas": self.deltas,
            "said": said.model_dump() if isinstance(said, BaseModel) else said,
            "next": after,
        }
