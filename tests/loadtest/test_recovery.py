"""The recovery measurement: a small run of it, and what it reads off a front end's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.recovery.__main__ import COMMAND, faults
from loadtest.recovery.listening import Recovery, Sample, recovery


def sample(at: float, boot: str, tokens: int, *, held: int = 10) -> Sample:
    return Sample(at, boot, held, 10, 10, tokens)


def test_the_first_token_of_the_next_life_counts() -> None:
    """Not what the dead one had sent and was read late."""
    said = [
        sample(0.9, "a", 50),
        sample(1.1, "a", 55),
        sample(1.2, "", 60, held=0),
        sample(1.5, "b", 60, held=0),
        sample(1.7, "b", 60, held=9),
        sample(2.0, "b", 61, held=10),
    ]
    assert recovery(said, blow=1.0) == Recovery(first=1.0, accepted=1.0)


def test_a_life_that_is_seen_for_the_first_time_with_its_first_tokens() -> None:
    said = [sample(0.5, "a", 50), sample(3.0, "b", 70, held=4), sample(4.0, "b", 71)]
    assert recovery(said, blow=1.0) == Recovery(first=2.0, accepted=3.0)


@pytest.mark.parametrize("last", ["a", ""])
def test_what_never_comes_back_is_told_as_that(last: str) -> None:
    said = [sample(0.5, "a", 50), sample(3.0, last, 60)]
    assert recovery(said, blow=1.0) == Recovery(None, None)


def kill(**figures: object) -> dict[str, object]:
    good = {"load": "short", "requests": 9, "wanted_open": 8, "open_at_the_kill": 8}
    return {**good, "first_s": 1.0, "accepted_s": 2.0, "wrong": 0, **figures}


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"open_at_the_kill": 7}, "only 7 were open"),
        ({"first_s": 3.5}, "first after 3.50 s"),
        ({"accepted_s": None}, "accepted after never"),
        ({"wrong": 1}, "1 failed or were different"),
    ],
)
def test_what_is_wrong_is_said(figures: dict[str, object], words: str) -> None:
    (fault,) = faults({"kills": [kill(**figures)], "storm": None})
    assert words in fault
    assert not faults({"kills": [kill()], "storm": None})


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_small_run(tmp_path: Path) -> None:
    flags = ["--requests", "200", "--long-requests", "3", "--long-prompt", "9000"]
    COMMAND.main([*flags, "--pauses", "3", "--longest", "0.5", "--output", str(tmp_path)])
    document = json.loads((tmp_path / "recovery.json").read_text())
    short, long = document["kills"]
    assert (short["equal"], short["wrong"]) == (225, 0), short["failed"]
    assert (long["equal"], long["wrong"]) == (3, 0), long["failed"]
    for each in document["kills"]:
        assert each["open_at_the_kill"] > 0
        assert each["first_s"] is not None
        assert each["accepted_s"] is not None
    storm = document["storm"]
    assert (storm["equal"], storm["wrong"]) == (72, 0), storm["failed"]
    assert [pause["victim"] for pause in storm["pauses"]] == ["engine", "worker", "front end"]
    assert all(pause["went_on"] for pause in storm["pauses"])
    assert "| short prompts" in (tmp_path / "recovery.md").read_text()
