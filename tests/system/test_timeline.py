"""Where real requests' time went: everything has a name, and what is left is little."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from openai import OpenAI

from testing.serving import Server

pytestmark = [pytest.mark.timeout(600)]

REST = 0.05
"""Share of the wall time that may be between the named parts."""

ASK = {"x-penstock-timeline": "1"}


def body(**fields: Any) -> dict[str, Any]:
    return {"prompt": "The capital of France is", "max_tokens": 48, "ignore_eos": True, **fields}


TRIES = 10
"""A busy machine may stop a process where nobody counts, or the client: the best of so many."""


def check(timeline: dict[str, Any], outside: float) -> bool:
    """outside: the seconds that the client measured. Returns whether what has no name is little,
    and what the client waited is in it."""
    parts = timeline["parts"]
    assert sum(parts.values()) == pytest.approx(timeline["wall"], abs=1e-4)
    assert timeline["wall"] <= outside
    assert all(seconds >= 0 for name, seconds in parts.items() if name != "rest"), parts
    for each in timeline["sequences"]:
        assert 0 < each["share"] <= each["compute"] + 1e-6
    little = abs(parts["rest"]) <= REST * timeline["wall"]
    return little and outside - timeline["wall"] < 0.1


def asked(client: httpx.Client, fields: dict[str, Any]) -> httpx.Response:
    """The answer whose timeline leaves little without a name."""
    for _ in range(TRIES):
        answer = client.post("/v1/completions", json=fields, headers=ASK)
        if check(answer.json()["penstock_timeline"], answer.elapsed.total_seconds()):
            return answer
    raise AssertionError(answer.json()["penstock_timeline"])


@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 2, "temperature": 1, "seed": 1}, {"prompt": ["One", "Two words"]}, {"stop": "zq"}],
    ids=["one", "two choices", "two prompts", "stop string"],
)
def test_the_parts_add_up_and_the_rest_is_small(server: Server, fields: dict[str, Any]) -> None:
    with httpx.Client(base_url=server.url, timeout=240) as client:
        client.get("/health/live")  # the connection is open
        answer = asked(client, body(**fields))
        timeline = answer.json()["penstock_timeline"]
    assert len(timeline["sequences"]) == len(answer.json()["choices"])
    for each in timeline["sequences"]:
        each_token = each["steps"] + each["kept"] + each["extra_steps"]
        assert each_token >= 48, "one step a token at least, a draft, or one of several for a plan"
    assert "total;dur=" in answer.headers["server-timing"]


def test_a_stop_string_has_a_timeline_too(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=240) as client:
        # Far from the beginning: 5 % of the first token's time are less than a millisecond.
        fields = body(temperature=0, max_tokens=120, stop=["smart home"])
        reply = asked(client, fields).json()
    assert reply["choices"][0]["stop_reason"] == "smart home"
    assert reply["penstock_timeline"]["sequences"][0]["steps"] >= 1


def test_shares_of_a_crowd_add_up_to_the_steps(server: Server) -> None:
    """Eight at once: each was in steps that it shared, and together they had no more than all."""

    async def run() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=240) as client:
            asks = [
                client.post("/v1/completions", json=body(prompt=f"{n}", seed=n), headers=ASK)
                for n in range(8)
            ]
            return [answer.json()["penstock_timeline"] for answer in await asyncio.gather(*asks)]

    def in_company() -> bool:
        begun = time.monotonic()
        timelines = asyncio.run(run())
        elapsed = time.monotonic() - begun
        sequences = [timeline["sequences"][0] for timeline in timelines]
        assert sum(each["share"] for each in sequences) <= elapsed
        return max(each["compute"] for each in sequences) > 2 * max(s["share"] for s in sequences)

    # On a busy machine they may come one after the other.
    assert any(in_company() for _ in range(TRIES))


def test_the_openai_client_reads_past_it(server: Server) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(
            model=server.model,
            prompt="Hello",
            max_tokens=8,
            stream=True,
            extra_headers=ASK,
        )
        chunks = list(stream)
    assert chunks[-1].choices == []
    assert json.loads(chunks[-1].model_dump_json())["penstock_timeline"]["wall"] > 0
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
