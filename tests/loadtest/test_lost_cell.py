"""What the measurement of a lost cell says of its streams, and whether it notices what is wrong."""

from __future__ import annotations

import copy
import json

import pytest

from loadtest.lost_cell.__main__ import COMMAND, faults, silence
from loadtest.lost_cell.clients import Heard, body
from loadtest.report.files import RESULTS

DOCUMENT = json.loads((RESULTS / "lost_cell.json").read_text(encoding="utf-8"))


def test_the_page_is_what_its_figures_say() -> None:
    assert COMMAND.page(DOCUMENT) == (RESULTS / "lost_cell.md").read_text(encoding="utf-8")
    assert {each["balancer"] for each in DOCUMENT["runs"]} == {"haproxy", "envoy"}
    for run in DOCUMENT["runs"]:
        assert min(run["computed_before"]) > 0, "both cells were at work"
        assert run["resumed"] + run["refused"] >= run["moved"]


@pytest.mark.parametrize("wrong", [{"equal": 499}, {"refused": 1, "equal": 499}, {"moved": 0}])
def test_it_fails_where_a_stream_differs_or_is_refused_or_none_moved(wrong: dict[str, int]) -> None:
    assert not faults(DOCUMENT)
    document = copy.deepcopy(DOCUMENT)
    document["runs"][1].update(wrong)
    assert faults(document) == ["envoy"]


def test_silence_is_from_the_last_event_before_the_blow_to_the_next() -> None:
    heard = Heard(times=[1.0, 2.0, 5.0, 5.5])
    assert silence(heard, 3.0) == 3.0
    assert silence(heard, 9.0) == 0.0, "all of it had come"
    assert heard.gap() == 3.0


def test_no_two_streams_ask_for_the_same() -> None:
    asked = [json.dumps(body(number, 8)) for number in range(50)]
    assert len(set(asked)) == 50
    assert {json.loads(each)["temperature"] for each in asked} == {0.0, 0.7, 1.0}
