"""The measurement of drafts: what it asks for, and what it makes of what it found."""

from __future__ import annotations

import argparse

import httpx
import pytest

from loadtest.speculation.__main__ import AGAIN, DRAFTS, OFF, OPTIONS, _row, markdown, ratios, short
from loadtest.speculation.requests import WORKLOADS
from loadtest.speculation.streams import (
    BEGUN,
    ENDLESS,
    TOKENS,
    Pace,
    Streams,
    _are_busy,
    _newly_counted,
)


def paces(*rates: float, cost: float = 1.0) -> list[Pace]:
    return [Pace(2.0, 2.0 * rate, 2.0 * rate * cost, rate, rate / 2, {}) for rate in rates]


def test_ratios_are_of_the_same_round() -> None:
    assert ratios([20.0, 200.0], [10.0, 100.0]) == (pytest.approx(2.0), pytest.approx(0.0))
    # Between the two that are the same: halves of what they differ by.
    mean, error = ratios([10.0, 10.0], [10.0, 40.0], [40.0, 10.0])
    assert (mean, error) == (pytest.approx(0.5), pytest.approx(0.0))
    mean, error = ratios([10.0, 40.0], [10.0, 10.0])
    assert mean == pytest.approx(2.0)
    assert error == pytest.approx(2.0 * 0.6931, rel=1e-3)


def test_what_is_short_is_said_with_the_noise_that_there_was() -> None:
    def found(name: str, *rates: float) -> dict[str, object]:
        own = {OFF: paces(100, 104), AGAIN: paces(104, 100), DRAFTS: paces(*rates, cost=0.5)}
        return _row(Streams(name, 4, 8), own)

    facts = {"command": "x", "started": "2026-01-01T", "machine": {}, "model": "m"}
    slow, noisy, fine = found("chat", 90, 90), found("random", 80, 116), found("copy", 150, 150)
    document = {**facts, "speculative_config": "{}", "rows": [slow, noisy, fine]}
    [said] = short(document)
    assert said.startswith("chat at 4 streams is 0.88 times as fast; 0.98 is wanted")
    assert slow["cost"] == pytest.approx(0.5)
    assert (slow["drafted"], slow["kept"]) == (pytest.approx(0.5), pytest.approx(0.25))
    document["machine"] = {"cpu": "c", "cores": 2.0, "memory_bytes": 2**30, "python": "3"}
    assert "In 1 of 3 rows the error is larger than the 2%" in markdown(document)


def test_requests_are_new_ones_and_streams_at_different_places() -> None:
    for name in WORKLOADS:
        streams = Streams(name, 4, 64)
        bodies = [streams.body("0", stream, number) for stream in range(4) for number in range(2)]
        bodies += [Streams(name, 2, 64).body("0", 0, 0), streams.body("1", 0, 0)]
        assert len({str(body["messages"]) for body in bodies}) == len(bodies)
        assert [body["max_completion_tokens"] for body in bodies[:4]] == [1, 64, 17, 64]
        assert streams.body("0", 1, 1) == bodies[3]


def test_while_all_decode_no_answer_ends() -> None:
    streams = Streams("JSON", 4, 64, decoding=True)
    bodies = [streams.body("0", stream, 0) for stream in range(4)]
    assert {body["max_completion_tokens"] for body in bodies} == {ENDLESS}
    assert all(body["ignore_eos"] for body in bodies)
    before = {TOKENS: 90.0, BEGUN: 7.0}
    assert not _are_busy(streams, before, {TOKENS: 400.0, BEGUN: 10.0})
    assert _are_busy(streams, before, {TOKENS: 400.0, BEGUN: 11.0})


async def test_a_window_begins_just_when_tokens_have_come() -> None:
    """They come sixteen at a time, of which the counters tell."""
    counts = iter([5, 5, 5, 21, 21, 37])

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=f'{TOKENS}{{model_name="m"}} {next(counts)}\n')

    async with httpx.AsyncClient(
        transport=httpx.MockTransport(answer), base_url="http://somewhere"
    ) as client:
        assert (await _newly_counted(client, []))[TOKENS] == 21
        assert (await _newly_counted(client, []))[TOKENS] == 37


def test_cells() -> None:
    parse = OPTIONS["--cells"]["type"]
    assert parse("copy:1,chat:64") == [("copy", 1), ("chat", 64)]
    for wrong in ("copy", "copy:0", "sing:4", "chat:x"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no cell as chat:4 is"):
            parse(wrong)
