"""Estimates of experts in the host's memory beside a card, against the arithmetic by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from penstock.cli import processes
from penstock.cli.main import main
from penstock.model.expert_room import rows_worth_a_copy
from penstock.recommend.beside_card import (
    BesideCard,
    ExpertShape,
    HostFigures,
    StepOperation,
    place_experts,
    timed,
)
from penstock.recommend.beside_fits import card_fits, host_figures, placed_model
from penstock.recommend.cards import DEVICES
from penstock.recommend.fits import GIB, Machine, fits
from penstock.recommend.releases import RELEASES

HOST = HostFigures(bandwidth=60, threads=16, memory=60)
BY_NAME = {release.name: release for release in RELEASES}
MIXTURE = placed_model(BY_NAME["Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M"])
ALL = BesideCard(MIXTURE, DEVICES["4090"], HOST, on_host=48)


def test_operations_wait_for_their_place_and_for_what_they_need() -> None:
    """The card computes shared experts while the host computes others, and waits for the rest."""
    layer = [
        StepOperation("attention", "card", 1.0),
        StepOperation("down", "link", 0.5, (0,)),
        StepOperation("experts", "host", 4.0, (1,)),
        StepOperation("shared", "card", 2.0, (0,)),
        StepOperation("up", "link", 0.5, (2,)),
        StepOperation("attention", "card", 1.0, (3, 4)),
    ]
    found = timed(layer)
    assert found.whole == 7.0
    assert found.busy == {"card": 4.0, "host": 4.0, "link": 1.0}
    assert found.either == 6.5


@pytest.mark.parametrize("streams", [1, 8, 32])
def test_the_card_or_the_host_is_busy(streams: int) -> None:
    """At least 85 % of the time, for Qwen3-30B-A3B with all experts on the host; most of it, the
    host is. Every operation is on one of three places, once."""
    operations = list(ALL.operations(streams, streams, 1024))
    found = timed(operations)
    assert len(operations) == 48 * 5 + 1
    assert found.either >= 0.85 * found.whole
    assert found.busy["host"] > 0.65 * found.whole
    assert sum(found.busy.values()) == pytest.approx(sum(each.seconds for each in operations))


@pytest.mark.parametrize("streams", [8, 32, 128])
def test_half_batches_would_take_longer(streams: int) -> None:
    """As the host reads experts that both halves have twice."""
    whole, halves = (ALL.step(streams, streams, 1024, parts).whole for parts in (1, 2))
    assert halves > whole


def test_experts_that_the_host_reads_by_hand() -> None:
    """At 80 % of 60 GB/s; 8 rows have 51.6 of 128 experts, where each has 8."""
    read = 128 * (1 - (120 / 128) ** 8)
    seconds = read * 2_918_400 / 48e9
    [host] = {each.seconds for each in ALL.operations(8, 8, 0) if each.place == "host"}
    assert host == pytest.approx(seconds)


def test_prompts_from_the_threshold_on_go_to_the_card() -> None:
    """Each expert has as many rows, on average."""
    assert ALL.threshold == rows_worth_a_copy(2_918_400, 4_718_592, 16, 0.8 * 60e9 / 3)
    enough = ALL.threshold * 128 // 8
    below, above = (
        {each.name for each in ALL.operations(rows, 1, 0)} for rows in (enough - 1, enough)
    )
    assert ("down" in below, "copies" in below) == (True, False)
    assert ("down" in above, "copies" in above) == (False, True)
    assert ALL.step(2048, 1, 0).busy["host"] == 0.0


def test_copies_are_no_faster_than_memory_is_filled() -> None:
    """A copied byte passes the host's memory three times: a desktop's is slower than the bus, a
    server's isn't."""
    server = replace(ALL, host=HostFigures(bandwidth=300, threads=32, memory=250))
    assert [ALL.copy_rate, server.copy_rate] == pytest.approx([16e9, 24e9])
    for beside in (ALL, server):
        [copies, *_] = [each for each in beside.operations(2048, 1, 0) if each.name == "copies"]
        assert copies.seconds == pytest.approx(128 * 2_918_400 / beside.copy_rate, rel=1e-3)


def machine(free: float) -> Machine:
    size = int(free * GIB)
    return Machine(size, size, "a processor", 16, "avx512vnni", 60e9, "not at all")


LARGE = ("ggml-org/gpt-oss-120b-GGUF:MXFP4", "unsloth/GLM-4.5-Air-GGUF:Q4_K_M")


def test_a_card_and_its_host_serve_what_neither_serves_alone() -> None:
    """24 GB beside 64, of which some are taken."""
    card, host = DEVICES["4090"], machine(60)
    found = {fit.model: fit for fit in card_fits(host, card)}
    alone = {fit.model: fit for fit in fits(host)}
    for name in LARGE:
        fit, model = found[name], placed_model(BY_NAME[name])
        assert fit.missing == 0
        assert 0 < fit.on_host < fit.layers
        assert fit.command == f"penstock serve {name} --device cuda --cpu-experts auto"
        assert fit.tokens_per_s > 5
        assert place_experts(model, card, host_figures(host), 4096, "0").card_missing > 0
        assert alone[name].missing > 0
    assert not found["Qwen/Qwen3-8B-GGUF:Q4_K_M"].beside


def test_a_card_of_12_gb_has_more_layers_on_the_host_and_a_large_one_none() -> None:
    small, usual, large = (
        place_experts(MIXTURE, DEVICES[name], HOST, 4096).on_host
        for name in ("3060", "4090", "h200")
    )
    assert 48 > small > usual > large == 0
    assert place_experts(MIXTURE, DEVICES["h200"], HOST, 4096, "all").on_host == 48
    assert place_experts(MIXTURE, DEVICES["3060"], HOST, 4096, "0").card_missing > 0
    lacking = msgspec.structs.replace(HOST, memory=1)
    assert place_experts(MIXTURE, DEVICES["3060"], lacking, 4096).host_missing > 0


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def on(*flags: str) -> tuple[int, str]:
        monkeypatch.setattr(processes, "this_machine", lambda: machine(8))
        status = main(["recommend", *flags])
        said = capsys.readouterr()
        return status, said.out + said.err

    return on


def test_the_command_names_them(run: Any) -> None:
    status, said = run("--device", "4090", "--memory", "60")
    assert status == 0
    row = next(line for line in said.splitlines() if line.startswith(LARGE[0]))
    assert "28 of 36 layers" in row
    assert f"Serve: penstock serve {LARGE[0]} --device cuda --cpu-experts auto" in said
    assert "none of it measured on a card" in said
    status, said = run("--device", "4090", "--json")
    whole = json.loads(said)
    assert whole["card"]["memory"] == 24
    assert {each["model"] for each in whole["models"]} == set(BY_NAME)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--device", "9090"), "--device '9090': it takes 3060, 4090"),
        (("--memory", "0"), "--memory is 0; allowed are more than 0 and up to 65,536 GiB"),
    ],
)
def test_what_is_wrong_is_refused(run: Any, flags: tuple[str, ...], words: str) -> None:
    status, said = run(*flags)
    assert status != 0
    assert words in said


def test_a_shape_counts_the_experts_that_rows_have() -> None:
    shape = ExpertShape(1, 4, 2, 10, 10, 32)
    assert shape.read(1) == 2
    assert shape.read(2) == 3
    assert shape.size == 40
