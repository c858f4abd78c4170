"""Prompt lookup beside other libraries: what is made of their answers."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.lookup_peers import _row


def answer(seconds: float, processor: float, *ids: int) -> dict[str, Any]:
    return {"seconds": seconds, "processor": processor, "ids": list(ids)}


def test_answers_are_compared_with_those_of_the_same_prompts() -> None:
    found = {
        "off": [answer(4.0, 2.0, 5, 6), answer(4.0, 2.0, 7)],
        "drafts": [answer(1.0, 1.0, 5, 6), answer(1.0, 1.0, 8)],
    }
    row = _row("any", "copy", 16, found)
    assert (row["ratio"], row["by_work"]) == (pytest.approx(4.0), pytest.approx(2.0))
    assert (row["same"], row["answers"]) == (1, 2)
    assert row["with_drafts"] == pytest.approx(16.0)
