"""Streams while processes are killed and frozen: none breaks, and each equals its twin.

How much of it there is: --chaos short (CI, less than a minute), full (32 streams, 20 kills of the
worker and 20 of the engine core; a quarter of an hour), long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest

from testing.serving import Server, wait_until
from testing.streams.disturber import Disturber, recoveries
from testing.streams.fleet import Fleet
from testing.streams.mix import KINDS, STREAMS, mix
from testing.streams.reading import Answer, Choice


class Amount(NamedTuple):
    """kills, freezes: of each victim.  tokens: of each answer.  limit: seconds."""

    streams: int
    kills: int
    freezes: int
    tokens: int
    limit: int


AMOUNTS = {
    "short": Amount(2 * len(KINDS), 1, 1, 24, 900),
    "full": Amount(STREAMS, 20, 10, 96, 2400),
    "long": Amount(STREAMS, 200, 100, 96, 24000),
}


@pytest.fixture
def amount(request: pytest.FixtureRequest) -> Amount:
    return AMOUNTS[request.config.getoption("--chaos")]


@pytest.mark.timeout(0)  # `amount` has a limit
def test_nothing_is_lost_whatever_dies(
    start_server: Callable[..., Server], amount: Amount, capsys: pytest.CaptureFixture[str]
) -> None:
    patient = ("--grammar-compile-timeout", "600")  # Of a machine that does much else.
    server = start_server("--max-model-len", "1024", "--num-kv-blocks", "1024", *patient)
    first = {title: server.child(title) for title in ("engine", "worker 0")}
    fleet = Fleet(server.url, mix(amount.tokens, amount.streams))

    def pid_of(title: str) -> int | None:
        return server.children().get(f"penstock: {title}")

    disturber = Disturber(fleet, pid_of, seed=amount.kills)

    striking = disturber.strike_all(first, amount.kills, amount.freezes)
    asyncio.run(asyncio.wait_for(striking, amount.limit))
    with capsys.disabled():
        print("\n" + recoveries(disturber.blows))
    assert fleet.score.wrong == []
    assert fleet.score.equal >= amount.streams, "every stream of the mix was compared"
    assert len(disturber.blows) == 2 * (amount.kills + amount.freezes)
    for title, pid in first.items():
        assert server.child(title) != pid, f"{title} was never killed"
    wait_until(lambda: server.get("/status")[1]["engine"]["blocks_used"] == 0)
    assert server.get("/status")[1]["engine"]["waiting"] == 0


def test_the_comparison_sees_a_difference() -> None:
    """A test that compares nothing would pass as well."""
    alike = [Answer([Choice("a", "stop", "x", [1.0]), Choice("b", "length")]) for _ in range(2)]
    assert alike[0] == alike[1]
    for change in (
        {"text": "c"},
        {"finish_reason": "length"},
        {"stop_reason": None},
        {"logprobs": [1.0000001]},
    ):
        other = Answer([Choice("a", "stop", "x", [1.0]), Choice("b", "length")])
        for name, value in change.items():
            setattr(other.choices[0], name, value)
        assert other != alike[0]
