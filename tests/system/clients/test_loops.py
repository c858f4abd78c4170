"""Agents' loops by the SDKs that people write them with: two turns of calls, the second of several
at once, thoughts, an answer, and a further question; whole, streamed, and with an answer as an
object. What the SDK's user sees is what the model wrote, the model is shown all of it again, and
where there is a grammar, it admits such answers.

The model is a script; see talking.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from penstock_grammars.library import Library
from testing.tiny_models import byte_level_tokenizer
from tests.gateway.fake_engine import MODEL
from tests.gateway.live_gateway import LiveGateway
from tests.system.clients import talking
from tests.system.clients.installed import run_node_script, run_script, venv

pytestmark = [pytest.mark.timeout(600)]

QUESTION = "What shall I wear in Paris, Rome and Oslo?"
NEXT = "And at night?"
WAYS = ("", "_streamed", "_structured")
NEWER_OPENAI = ("openai_agents_loops", "pydantic_ai_loops")


@dataclass(frozen=True, slots=True)
class Api:
    """How a client speaks one of the APIs. name: begins its features' names.  ways: of going
    through the loop.  shows, keeps: whether it shows thoughts to its user, and sends them back.
    words: whether it sends back what was said before calls.  asks_again: it asks for the object
    once more, in a request of its own."""

    name: str
    ways: tuple[str, ...] = WAYS
    shows: bool = True
    keeps: bool = True
    words: bool = True
    asks_again: bool = False


BY_TOOL = (*WAYS, "_structured_by_tool")
CLIENTS = {
    "langchain_loops": [Api("chat", shows=False, keeps=False), Api("responses")],
    "openai_agents_loops": [Api("chat", keeps=False), Api("responses")],
    "pydantic_ai_loops": [
        Api("chat", BY_TOOL),
        Api("responses", BY_TOOL),
        # Of Anthropic's models it knows by their names which have structured answers.
        Api("messages", ("", "_streamed", "_structured_by_tool")),
    ],
    "llama_index_loops": [Api("chat", shows=False, keeps=False, asks_again=True)],
    "litellm_loops": [
        Api("chat"),
        Api("vllm"),
        # There it forces a tool for the object, and others can't be called.
        Api("messages", ("", "_streamed")),
    ],
    "instructor_loops": [
        Api(
            "structured",
            ("", "_streamed", "_by_tool", "_by_tool_streamed"),
            shows=False,
            keeps=False,
            words=False,
        )
    ],
    "anthropic_loops": [Api("messages")],
    "mistral_loops": [Api("chat", shows=False, keeps=False)],
    "ollama_loops": [Api("chat")],
    "ai_sdk_loops": [
        Api("compatible"),
        Api("chat", shows=False, keeps=False),
        Api("mistral", shows=False, keeps=False),
        Api("responses"),
        # There it wants one call at a time where it wants an object.
        Api("messages", ("", "_streamed")),
    ],
}
LOOPS = [
    pytest.param(script, api, f"{api.name}{way}", id=f"{script}-{api.name}{way}")
    for script, apis in CLIENTS.items()
    for api in apis
    for way in api.ways
]
Results = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with talking.talking() as running:
        yield running


@pytest.fixture(scope="module")
def results(gateway: LiveGateway) -> Results:
    """What the user of a client has seen, and what the model has heard meanwhile."""

    @cache
    def of(script: str) -> dict[str, Any]:
        features = [f"{api.name}{way}" for api in CLIENTS[script] for way in api.ways]
        before = len(gateway.engine.heard)
        if script == "ai_sdk_loops":
            told = run_node_script(script, gateway.url, MODEL, "", *features)
        else:
            path = str(venv() / "openai3") if script in NEWER_OPENAI else ""
            told = run_script(script, gateway.url, MODEL, "", *features, PYTHONPATH=path)
        return {"told": told, "heard": gateway.engine.heard[before:]}

    return of


@pytest.fixture(scope="module")
def admits(tmp_path_factory: pytest.TempPathFactory) -> Callable[[talking.Heard], bool]:
    """Whether the grammar of a request admits what the script answered."""
    tokenizer = byte_level_tokenizer()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    end: Any = tokenizer.token_to_id("<|im_end|>")
    library = Library(path, tokenizer.get_vocab_size(), (end,))

    def admits(heard: talking.Heard) -> bool:
        grammar = heard.params.structured_outputs
        if grammar is None:
            return True
        matcher = library.matcher(library.source(grammar.definition()))
        ids = tokenizer.encode(heard.said, add_special_tokens=False).ids
        return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())

    return admits


@pytest.mark.parametrize(("script", "api", "feature"), LOOPS)
def test_a_loop(
    script: str,
    api: Api,
    feature: str,
    results: Results,
    admits: Callable[[talking.Heard], bool],
) -> None:
    found = results(script)
    told = found["told"].get(feature) or found["told"].get("") or {"error": "it did not run"}
    assert "error" not in told, told["error"]
    got = told["got"]
    # Some run the tools of a turn at once.
    assert [got["calls"][0], *sorted(got["calls"][1:])] == ["Paris", "Oslo", "Rome"]
    assert [each for each in got["thoughts"] if each] == (talking.THOUGHTS if api.shows else [])
    structured = "structured" in feature
    assert got["said"] == (talking.OBJECT if structured else talking.ADVICE)
    assert got["next"] == (None if structured else talking.NIGHT)
    assert (got["deltas"] > 1) == ("streamed" in feature)

    rules = f"You are {feature}."
    heard = [each for each in found["heard"] if rules in each.prompt]
    expected = prompts(api, structured)
    assert [said_in(each.prompt) for each in heard[: len(expected)]] == expected
    assert len(heard) == len(expected) + api.asks_again * structured
    for each in heard[:2]:
        assert each.prompt.startswith(f"<|im_start|>system\n{rules}")
        assert "get_weather" in talking.names(each.prompt)
    if structured:
        assert not admits(replace(heard[-1], said="It is cold."))
    assert all(map(admits, heard)), [each.said for each in heard if not admits(each)]


def said_in(prompt: str) -> str:
    """The conversation behind the system prompt, which holds the tools."""
    return prompt[prompt.index("<|im_start|>user\n") :]


def prompts(api: Api, structured: bool) -> list[str]:
    """What the model should be shown, request by request, written out."""

    def thought(words: str) -> str:
        return talking.thought(words) if api.keeps else ""

    def told(cities: tuple[str, ...]) -> str:
        results = "".join(
            f"\n<tool_response>\n{talking.WEATHER[city]}\n</tool_response>" for city in cities
        )
        return turn("user", results.lstrip("\n"))

    between = f"{talking.BETWEEN}\n" if api.words and not structured else ""
    answers = [talking.calls(talking.FIRST), between + talking.calls(talking.SECOND)]
    asked = turn("user", QUESTION)
    first = told(talking.FIRST)
    second = told(talking.SECOND)
    thinking = [
        turn("assistant", thought(words) + answer)
        for words, answer in zip(talking.THOUGHTS, answers, strict=False)
    ]
    shown = [asked, asked + thinking[0] + first]
    shown.append(shown[-1] + thinking[1] + second)
    if not structured:
        # The template shows no thoughts before the user's last words.
        turns = [turn("assistant", answer) for answer in (*answers, talking.ADVICE)]
        shown.append(asked + turns[0] + first + turns[1] + second + turns[2] + turn("user", NEXT))
    return [f"{each}<|im_start|>assistant\n" for each in shown]


def turn(role: str, words: str) -> str:
    return f"<|im_start|>{role}\n{words}<|im_end|>\n"
