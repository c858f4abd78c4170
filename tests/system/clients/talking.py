"""A real gateway whose model says what its prompt asks for: the same conversation with every
client's loop.

The engine is a script. The parsers, the template, the tokenizer and the APIs are the gateway's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from penstock.client import ModelText, SequenceDelta
from penstock.model.prepared_model import GenerationDefaults
from penstock.request.sampling_params import SamplingParams
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import byte_level_tokenizer
from tests.gateway.fake_engine import FakeEngineClient, Step, welcome
from tests.gateway.live_gateway import LiveGateway

TEMPLATE = Path(__file__).parents[2] / "shared/text/templates/qwen3.jinja"
CONTEXT = 65_536
PIECE = 5
"""Characters of a delta."""

THOUGHTS = ["I look at Paris first.", "Now the other two, é.", "I know enough."]
FIRST, SECOND, LAST = [("Paris",), ("Rome", "Oslo"), ()]
"""The cities whose weather is asked for, in each turn."""
BETWEEN = "Let me compare."
"""What is said before the calls of the second turn."""
ADVICE = "Take a coat. 🧥"
NIGHT = "Two coats."
"""What the next question gets."""
OBJECT_ASKED = "with an object"
"""Words of the system prompt."""
OBJECT = {"city": "Oslo", "coat": True}
WEATHER = {"Paris": "Rain, 9 °C", "Rome": "Sun", "Oslo": "Snow"}


def thought(words: str) -> str:
    return f"<think>\n{words}\n</think>\n\n"


def call(name: str, arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def calls(cities: Iterable[str]) -> str:
    return "\n".join(call("get_weather", {"city": city}) for city in cities)


def answer(prompt: str) -> str:
    """What the model says: calls, until all results are there, then the advice."""
    if prompt.count("<|im_start|>user\n") - prompt.count("<|im_start|>user\n<tool_response>") > 1:
        return thought("At night.") + NIGHT
    if tools(prompt) and "get_weather" not in names(prompt):
        return final(prompt)
    match prompt.count("\n<tool_response>\n"):
        case 0:
            return thought(THOUGHTS[0]) + calls(FIRST)
        case 1:
            return thought(THOUGHTS[1]) + between(prompt) + calls(SECOND)
    return thought(THOUGHTS[2]) + final(prompt)


def between(prompt: str) -> str:
    """Where an object is asked for, words are no answer."""
    return "" if OBJECT_ASKED in prompt else BETWEEN


def final(prompt: str) -> str:
    """An object, if that is asked for: by the tool for it, if there is one."""
    if OBJECT_ASKED not in prompt:
        return ADVICE
    if tool := next((name for name in names(prompt) if name != "get_weather"), ""):
        return call(tool, OBJECT)
    return json.dumps(OBJECT)


def names(prompt: str) -> list[str]:
    """Names of the tools that it shows."""
    return [json.loads(line)["function"]["name"] for line in tools(prompt).splitlines()]


def tools(prompt: str) -> str:
    """The lines that show them."""
    _, mark, rest = prompt.partition("<tools>\n")
    return rest.partition("\n</tools>")[0] if mark else ""


@dataclass(frozen=True, slots=True)
class Heard:
    """A request, as the engine got it. said: the answer."""

    prompt: str
    params: SamplingParams
    said: str


class TalkingEngine(FakeEngineClient):
    """heard: all requests."""

    def __init__(self) -> None:
        super().__init__(self._says)
        content = byte_level_tokenizer().to_str().encode()
        self.tokens = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)
        self.end = self.tokens.special_tokens["<|im_end|>"]
        generation = GenerationDefaults(eos_token_ids=(self.end,))
        template = ChatTemplate(TEMPLATE.read_text(), self.tokens, generation=generation)
        self.text = ModelText(self.tokens, template)
        fresh = welcome(generation=generation)
        limits = msgspec.structs.replace(
            fresh.limits, max_model_len=CONTEXT, vocab_size=self.tokens.vocab_size
        )
        self.welcome = msgspec.structs.replace(fresh, limits=limits)
        self.heard: list[Heard] = []

    def _says(self, prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        text = self.tokens.decode(prompt, skip_special_tokens=False)
        said = answer(text)
        self.heard.append(Heard(text, params, said))
        for at in range(0, len(said), PIECE):
            piece = said[at : at + PIECE]
            ids = self.tokens.encode(piece, add_special=False)
            yield [SequenceDelta(index=0, text=piece, token_ids=ids)]
        yield [SequenceDelta(index=0, token_ids=[self.end], finish_reason="stop")]


@contextmanager
def talking() -> Iterator[LiveGateway]:
    engine = TalkingEngine()
    try:
        with LiveGateway(engine) as gateway:
            yield gateway
    finally:
        engine.text.close()
