"""Plans of a mixture of experts on a card and its host."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest
from penstock.prepare.describe import ExpertBytes
from penstock.recommend.beside_card import BesideCard, HostFigures, place_experts
from penstock.recommend.beside_fits import placed_model as of_release
from penstock.recommend.cards import DEVICES
from penstock.recommend.releases import RELEASES
from penstock_planning.commands.plan import _model as model_of
from penstock_planning.plan.beside import beside_plan, parse_host, placed_model
from penstock_planning.plan.command import PlanRequest, plan_of
from penstock_planning.simulate.cost import StepCost, check_cost, parse
from tests.worker.models.family_cases import read

HOST = HostFigures(bandwidth=60, threads=16, memory=60)
RELEASE = next(each for each in RELEASES if "120b" in each.name)
MODEL = of_release(RELEASE)


def test_costs_are_those_of_steps() -> None:
    """Of any number of decodes, and of any prompt: what is between the points that were reckoned is
    no cheaper."""
    card = DEVICES["4090"]
    found = beside_plan(MODEL, card, HOST, "auto", 16)
    on_host = place_experts(MODEL, card, HOST, 4096).on_host
    beside = BesideCard(MODEL, card, HOST, on_host)
    most = 0.0
    for tokens in (*range(1, 300), *range(300, 9000, 50)):
        seconds = beside.step(tokens, tokens, 0).whole
        cost = found.cost.seconds(tokens, tokens, 0)
        assert cost > 0.98 * seconds
        most = max(most, cost)
        assert cost < max(1.02 * seconds, most + 1e-9)
    assert 28 <= on_host < 36
    assert f"experts of {on_host} of 36 layers on the host" in found.words
    assert found.blocks > 1000


def test_a_curve_by_hand() -> None:
    """Linear between its pairs, and beyond them."""
    curve = ((2, 1.0), (4, 5.0), (8, 6.0))
    cost = StepCost(base_ms=0, token_ms=0, sequence_ms=0, overhead_ms=2, curve=curve)
    found = [1000 * cost.seconds(tokens, 1, 0) for tokens in (1, 2, 3, 4, 6, 8, 12)]
    assert found == pytest.approx([2, 3, 5, 7, 7.5, 8, 9])
    check_cost(cost, "a file")


@pytest.mark.parametrize(
    "curve",
    [
        ((1, 1.0),),
        ((2, 1.0), (1, 2.0)),
        ((0, 1.0), (1, 2.0)),
        ((1, 2.0), (2, 1.0)),
        ((1, float("nan")), (2, 1.0)),
        ((1, 1.0), (2, 1e9)),
        tuple((tokens, 1.0) for tokens in range(1, 66)),
    ],
)
def test_other_curves_are_refused(curve: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(InvalidRequest, match="a file: curve has 2 to 64 pairs of tokens"):
        check_cost(StepCost(curve=curve), "a file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"curve": [[1, 1.0]]}, "curve has 2 to 64 pairs"),
        ({"curve": [[1, 1.0], [1, 2.0]]}, "curve has 2 to 64 pairs"),
        ({"token_ms": -0.1}, "token=-0.1 is not allowed"),
    ],
)
def test_files_with_other_costs_are_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """As soon as they are read, by whichever command."""
    file = tmp_path / "steps.json"
    errors = dict.fromkeys(("error_percent", "error_p95_percent", "total_error_percent"), 1.0)
    file.write_bytes(msgspec.json.encode({"cost": change, "steps": 3, **errors}))
    with pytest.raises(InvalidRequest, match=f"steps.json': {words}"):
        parse(str(file))


def test_slow_hosts_have_the_points_that_are_allowed() -> None:
    """A step of many tokens takes minutes there."""
    slow = msgspec.structs.replace(HOST, bandwidth=0.3, threads=1, memory=90)
    cost = beside_plan(MODEL, DEVICES["4090"], slow, "all", 16).cost
    check_cost(cost, "a host")
    assert 2 <= len(cost.curve) < 30
    slower = msgspec.structs.replace(slow, bandwidth=0.001)
    with pytest.raises(InvalidRequest, match=r"^--host with bandwidth=0.001,threads=1: .* takes"):
        beside_plan(MODEL, DEVICES["4090"], slower, "all", 16)


def test_keys_and_values_are_read_in_any_step() -> None:
    """Also where a step waits for the host, or for launches."""
    cost = beside_plan(MODEL, DEVICES["4090"], HOST, "auto", 16).cost
    kv = MODEL.kv_per_token / (0.8 * 1008e9)
    reading = cost.seconds(8, 8, 0, reads=8 * 4096) - cost.seconds(8, 8, 0)
    assert reading == pytest.approx(8 * 4096 * kv)


@pytest.mark.parametrize("words", ["37", "-1", "some", ""])
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(InvalidRequest, match=r"allowed are 0 to 36, .* all, and auto"):
        beside_plan(MODEL, DEVICES["4090"], HOST, words, 16)


def test_what_does_not_fit_says_what_is_lacking() -> None:
    small = msgspec.structs.replace(HOST, memory=10)
    with pytest.raises(InvalidRequest, match=r"28 of 36 layers' .*: the host lacks 45\.\d GB"):
        beside_plan(MODEL, DEVICES["4090"], small, "auto", 16)
    with pytest.raises(InvalidRequest, match=r"0 of 36 layers' .*: the card lacks \d+\.\d GB"):
        beside_plan(MODEL, DEVICES["4090"], HOST, "0", 16)


def test_a_hosts_figures() -> None:
    assert parse_host("bandwidth=60, threads=16,memory=60") == HOST


@pytest.mark.parametrize(
    "text",
    [
        *("", "60", "bandwidth=60,threads=16", "bandwidth=60,threads=0.5,memory=1"),
        *("bandwidth=nan,threads=1,memory=1", "bandwidth=1,threads=1,memory=1,price=2"),
    ],
)
def test_other_figures_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="it takes bandwidth=60,threads=16,memory=64"):
        parse_host(text)


def test_a_models_shape_is_its_configurations() -> None:
    """Two bytes a weight. GLM 4.5's first layer has no experts, the others a shared one."""
    config = read("glm45")
    known: Any = SimpleNamespace(
        experts=object(), parameters=10**6, size=2 * 10**6, kv_bytes_per_token=96
    )
    found = placed_model(known, config)
    assert found is not None
    hidden, shape = config.hidden_size, found.experts
    assert (shape.layers, shape.count, shape.active) == (config.num_layers - 1, 8, 3)
    assert (shape.weights, shape.nbytes) == (3 * hidden * 32, 2 * 3 * hidden * 32)
    assert (shape.width, shape.shared) == (hidden, shape.nbytes)
    assert found.rest == 2 * 10**6 - shape.layers * 8 * shape.nbytes
    assert found.card_share == 1
    # As it is held: a fifth more than in the file.
    count = shape.layers * 8
    held = ExpertBytes(file=count * 1000, host=count * 1200, card=count * 1800)
    measured = placed_model(known, config, held)
    assert measured is not None
    assert (measured.experts.nbytes, measured.rest) == (1200, 2 * 10**6 - count * 1000)
    assert measured.card_share == pytest.approx(1.5)
    dense: Any = SimpleNamespace(experts=None, parameters=10**6)
    assert placed_model(dense, read("llama-yarn")) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"placed": None}, "--cpu-experts needs a model with experts"),
        ({"host": None}, "--cpu-experts needs --host, as in bandwidth=60"),
        ({"cpu_experts": "off"}, "--host is of no use without --cpu-experts"),
        ({"cpu_experts": "9" * 5000}, "allowed are 0 to 36, the number of layers"),
        ({"device": None, "step_cost": "a=1"}, "--cpu-experts needs --device"),
    ],
)
def test_a_plan_says_what_it_lacks(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        plan_of(msgspec.structs.replace(asked(), **change), EngineConfig())


@pytest.mark.parametrize("measured", [False, True])
def test_weights_are_opened_for_experts_beside_a_card_alone(
    measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes torch."""
    known: Any = SimpleNamespace(experts=object())
    opened: list[Any] = []
    for name, found in {
        "penstock.prepare.prepare": "folder",
        "penstock.prepare.load_manifest": SimpleNamespace(decoder=None),
        "penstock.prepare.describe.describe": known,
        "penstock_planning.plan.command.size_of": (known, 0.0),
        "penstock_planning.plan.beside.placed_model": None,
    }.items():
        monkeypatch.setattr(name, lambda *_, found=found, **__: found)
    monkeypatch.setattr("penstock.cli.processes.expert_bytes", opened.append)
    assert model_of("some-model", measured=measured) == (known, 0.0, None)
    assert bool(opened) is measured


def asked() -> PlanRequest:
    known: Any = SimpleNamespace(name="gpt-oss-120b")
    return PlanRequest(
        slo="ttft_p95=60s",
        rate=0.02,
        requests=20,
        device="4090",
        model=known,
        placed=MODEL,
        cpu_experts="auto",
        host="bandwidth=60,threads=16,memory=60",
    )


def test_a_plan_says_where_experts_are() -> None:
    plan = plan_of(asked(), EngineConfig())
    assert plan.cores == 1
    assert "gpt-oss-120b on 4090, experts of 28 of 36 layers on the host" in plan.steps
