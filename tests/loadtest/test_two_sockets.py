"""The model of two sockets, and the messages that it is built on."""

from __future__ import annotations

import os

import pytest

from loadtest.two_sockets import SHAPES, TRANSPORTS, expected, messages
from penstock.recommend.releases import RELEASES


def test_a_token_is_half_of_the_reading_and_the_messages() -> None:
    release = next(one for one in RELEASES if one.name == "Qwen/Qwen3-8B-GGUF:Q4_K_M")
    found = expected(release, 100e9, 10e-6, 1e-3)
    reading = release.read / 100e6
    assert found["messages"] == 4 * 36 + 2
    assert found["one"] == pytest.approx(reading)
    assert found["two"] == pytest.approx(reading / 2 + 1.46)
    assert found["gain"] == pytest.approx(found["one"] / found["two"])
    assert found["tcp"] == pytest.approx(reading / (reading / 2 + 146))
    free = expected(release, 100e9, 0.0, 0.0)
    assert (free["gain"], free["tcp"]) == (2.0, 2.0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_are_measured(transport: str) -> None:
    processors = sorted(os.sched_getaffinity(0))
    found = messages(transport, [processors[0], processors[-1]], rounds=3)
    assert len(found) == len(SHAPES)
    assert min(found) > 0
