"""The in-process comparison, with scripted runners in the places of real libraries."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from loadtest.peers.inprocess import LIBRARIES
from loadtest.peers.library import systems
from loadtest.peers.library.systems import NAMES, System, make_system
from loadtest.peers.library.work import WORK, Run, Work
from loadtest.peers.peer import PeerFailed
from loadtest.peers.rounds import Outcome, Rounds, take_turns
from loadtest.report.files import Document, SetupError
from loadtest.roofline.cost import ModelCost
from loadtest.roofline.probe import Limits
from testing.descendants import descendants

RUNNER = Path(__file__).with_name("scripted_runner.py")
DECODE = Work("decode", "decode", 1, 4, 11, 20, 1, target=2)
STREAMS = Work("streams", "output", 3, 4, 10, 20, 3)
PREFILL = Work("prefill", "prefill", 2, 50, 1, 20, 1)
COST = ModelCost(layer_bytes=900, layer_macs=50, head_bytes=100, head_macs=10, kv_bytes=2)
LIMITS = Limits(threads=2, read_bytes_per_s=1000, int8_ops_per_s=400, bf16_ops_per_s=None)
FACTS = {
    "command": "python inprocess.py",
    "started": "2020-01-02T03:04:05",
    "machine": {"cpu": "a CPU", "cores": 2.0, "memory_bytes": 2**30, "python": "3.11"},
    "model": "m.gguf",
}


def scripted(name: str, behaviour: str = "good", *, one_stream: bool = False) -> System:
    command = [sys.executable, str(RUNNER), "m.gguf", "1", behaviour]
    return System(name=name, version="1", command=command, one_stream=one_stream, start_timeout=100)


def measured(
    tmp_path: Path,
    *systems: System,
    rounds: int = 2,
    work: Sequence[Work] = (DECODE, STREAMS, PREFILL),
    budget: float = 1000,
) -> Rounds:
    *_, last = take_turns(systems, work, rounds=rounds, budget=budget, logs=tmp_path)
    return last


def document_of(rounds: Rounds) -> Document:
    """The document as the JSON file has it."""
    measured = {**FACTS, "model_cost": COST.to_dict(), **LIBRARIES.document(rounds)}
    document: Document = json.loads(json.dumps(measured))
    return document


def test_all_take_turns_and_rates_are_those_of_the_runs(tmp_path: Path) -> None:
    rounds = measured(tmp_path, scripted("penstock"), scripted("peer", "noisy"))
    assert rounds.done == 2
    document = document_of(rounds)
    for outcome in rounds.outcomes:
        name = outcome.peer.name
        assert outcome.failures == []
        assert [len(runs) for runs in outcome.runs.values()] == [2, 2, 2]
        assert LIBRARIES.rate(document, name, DECODE) == pytest.approx(10 / 0.01)
        assert LIBRARIES.rate(document, name, STREAMS) == pytest.approx(30 / 0.02)
        assert LIBRARIES.rate(document, name, PREFILL) == pytest.approx(100 / 0.02)
    assert len(document["systems"]["peer"]["work"]["streams"]["runs"]) == 2
    assert descendants(str(RUNNER)) == []


def test_what_is_measured_is_told_at_once(tmp_path: Path) -> None:
    turns = take_turns([scripted("a")], (DECODE, STREAMS), rounds=2, budget=1000, logs=tmp_path)
    counts = [sum(map(len, each.outcomes[0].runs.values())) for each in turns]
    assert counts[:4] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("error", "ValueError: it went wrong"),
        ("exits", "has ended"),
        ("unloadable", "can't load: OSError: no such model"),
    ],
)
def test_a_system_that_fails_is_named_and_the_others_run(
    tmp_path: Path, behaviour: str, reason: str
) -> None:
    rounds = measured(tmp_path, scripted("penstock"), scripted("peer", behaviour))
    good, bad = rounds.outcomes
    assert reason in bad.failures[0]
    assert len(good.runs["prefill"]) == 2
    text = LIBRARIES.text(document_of(rounds))
    row = next(row for row in text.splitlines() if "| decode" in row)
    assert "failed" in row
    assert descendants(str(RUNNER)) == []


def test_a_wrong_number_of_tokens_is_no_result(tmp_path: Path) -> None:
    rounds = measured(tmp_path, scripted("peer", "short"), rounds=1)
    outcome = rounds.outcomes[0]
    assert outcome.failures[0] == "decode: 1 outputs of [10] tokens instead of 1 of 11"
    assert list(outcome.runs) == ["prefill"]


def test_what_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "RUN_TIMEOUT", 1.0)
    rounds = measured(tmp_path, scripted("peer", "hangs"))
    assert "did not answer in time" in rounds.outcomes[0].failures[0]
    assert descendants(str(RUNNER)) == []


def test_the_slow_does_it_once_and_says_so(tmp_path: Path) -> None:
    impatient = Work("decode", "decode", 1, 4, 11, 0.001, 1)
    rounds = measured(tmp_path, scripted("slow"), rounds=3, work=[impatient])
    assert len(rounds.outcomes[0].runs["decode"]) == 1
    assert "1,000 ¹" in LIBRARIES.text(document_of(rounds))


def test_nothing_is_begun_after_the_budget(tmp_path: Path) -> None:
    rounds = measured(tmp_path, scripted("a"), rounds=3, budget=0)
    assert rounds.done == 0
    assert rounds.outcomes[0].runs == {}
    assert rounds.notes == ["Ended in round 1 of 3, before decode: 0 s were over."]


def test_one_stream_systems_skip_batches(tmp_path: Path) -> None:
    rounds = measured(tmp_path, scripted("llamacpp", one_stream=True), rounds=1)
    assert list(rounds.outcomes[0].runs) == ["decode", "prefill"]


def test_a_paused_runner_does_nothing_until_resumed(tmp_path: Path) -> None:
    with scripted("a").process(tmp_path / "log") as paused:
        paused.pause()
        with pytest.raises(PeerFailed, match="in time"):
            paused.call([[1]], 3, timeout=0.5)
        assert [p.status() for p in descendants(str(RUNNER))] == [psutil.STATUS_STOPPED]
        paused.resume()
        time.sleep(0.05)
        paused.pause()  # stopping a paused one must work as well
    assert descendants(str(RUNNER)) == []


def test_prompts_are_repeatable_and_differ_between_rounds() -> None:
    assert STREAMS.prompts("round 1") == STREAMS.prompts("round 1")
    everything = [*STREAMS.prompts("round 1"), *STREAMS.prompts("round 2")]
    assert len({prompt[0] for prompt in everything}) == 6
    assert {len(prompt) for prompt in everything} == {4}


def test_limits_by_hand() -> None:
    # One stream: 1,000 bytes of weights and (4 + 5.5) * 2 of keys and values, at 1,000 bytes/s.
    assert DECODE.limit(COST, LIMITS) == pytest.approx(1000 / 1019)
    # 2 * 50 prompt tokens of 50 multiply-adds, 2 rows of the head, two operations each.
    assert PREFILL.limit(COST, LIMITS) == pytest.approx(100 / ((100 * 50 + 2 * 10) * 2 / 400))
    slow_units = Limits(2, 1e9, 40, None)
    prefill = (12 * 50 + 3 * 10) * 2 / 40
    decode = 9 * 3 * 60 * 2 / 40
    assert STREAMS.limit(COST, slow_units) == pytest.approx(30 / (prefill + decode))


def test_without_a_peak_of_operations_prefill_has_no_limit(tmp_path: Path) -> None:
    unknown = Limits(2, 1000, None, None)
    assert (PREFILL.limit(COST, unknown), STREAMS.limit(COST, unknown)) == (None, None)
    assert DECODE.limit(COST, unknown) == DECODE.limit(COST, LIMITS)
    outcome = Outcome(scripted("penstock"), {"prefill": [Run(1.0, [[5], [5]], None)]})
    document = document_of(Rounds([outcome], [PREFILL], done=1, limits=[unknown]))
    assert "not measured" in LIBRARIES.text(document)
    LIBRARIES.draw(tmp_path / "chart.png", document)


def test_ratio_and_verdict() -> None:
    def rated(name: str, seconds: float) -> Outcome:
        return Outcome(scripted(name), {"decode": [Run(1.0, [[5] * 11], seconds)]})

    # Without drafts, Penstock is no peer of itself.
    plain = rated("penstock_without_drafts", 1.5)
    outcomes = [rated("penstock", 1.0), plain, rated("a", 4.0), rated("b", 2.5)]
    rounds = Rounds(outcomes, [DECODE], done=1, limits=[LIMITS])
    document = document_of(rounds)
    assert LIBRARIES.best_peer(document, DECODE) == ("b", pytest.approx(2.5))
    text = LIBRARIES.text(document)
    assert "2.50 × b" in text
    row = next(row for row in text.splitlines() if "≥ 2 ×" in row)
    assert "| yes |" in row
    outcomes[0].runs["decode"] = [Run(1.0, [[5] * 11], 2.0)]
    text = LIBRARIES.text(document_of(rounds))
    row = next(row for row in text.splitlines() if "≥ 2 ×" in row)
    assert "| **no** |" in row


def test_the_chart_is_drawn_whatever_is_missing(tmp_path: Path) -> None:
    rounds = Rounds([Outcome(scripted("penstock"))], [DECODE], limits=[LIMITS])
    LIBRARIES.draw(tmp_path / "chart.png", document_of(rounds))
    assert (tmp_path / "chart.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERS_DIR", str(tmp_path))
    for name in NAMES[2:]:
        with pytest.raises(SetupError, match=r"install\.sh"):
            make_system(name, Path("m.gguf"))
    with pytest.raises(SetupError, match="no system called"):
        make_system("other", Path("m.gguf"))


def test_the_work_is_that_of_the_targets() -> None:
    by_streams = [(w.streams, w.input_tokens, w.output_tokens, w.target) for w in WORK]
    assert by_streams == [
        (1, 32, 128, 2.5),
        (1, 1024, 64, None),
        (8, 32, 128, 2.0),
        (64, 128, 128, 2.0),
        (8, 1024, 1, 1.5),
    ]
