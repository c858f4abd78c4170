"""How much slower tokens come than with the best constant number of drafts, none included."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.speculation import closed_loop
from tests.engine.speculation.closed_loop import ClosedLoop, Stream
from tests.engine.speculation.core_loop import CONSTANTS, CoreLoop, Machine
from tests.met import met

STEPS: dict[str, Callable[[int], float]] = {
    "weights are read once": lambda rows: 0.020 + 0.0012 * rows,
    "each row costs": lambda rows: 0.004 + 0.004 * rows,
    "tiles of four rows": lambda rows: 0.02 + 0.012 * ((rows + 3) // 4),
    "rows are free up to 128": lambda rows: 0.006 + 0.00004 * max(0, rows - 128),
}
CHANCES = (0.0, 0.3, 0.7, 0.95)
BESIDE = 0.0003


def quiet(draws: random.Random) -> Callable[[], float]:
    return lambda: draws.lognormvariate(0.0, 0.03)


def bursts(draws: random.Random) -> Callable[[], float]:
    """Another process takes the processors now and then, and steps last 2 to 10 times as long."""

    left, slow = 0, 1.0

    def pace() -> float:
        nonlocal left, slow
        if not left:
            busy = slow == 1.0
            slow = draws.uniform(2.0, 10.0) if busy else 1.0
            left = draws.randrange(1, 12) if busy else draws.randrange(5, 80)
        left -= 1
        return slow * draws.lognormvariate(0.0, 0.1)

    return pace


def loop(name: str, streams: int, chance: float, noise: Callable[..., object]) -> CoreLoop:
    machine = Machine(STEPS[name], beside=BESIDE, noise=noise)  # type: ignore[arg-type]
    return CoreLoop(machine, [chance] * streams)


def limit(run: CoreLoop) -> float:
    """Where drafts gain little, or steps are few, it takes long to be sure of it."""
    best = max(map(run.constant, CONSTANTS)) / run.constant(0)
    return 0.05 if 1.0 < best < 1.15 or len(run.chances) > 8 else 0.025


@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("name", STEPS)
def test_one_stream_comes_as_fast_as_any_constant_number_gives(name: str, chance: float) -> None:
    run = loop(name, 1, chance, quiet)
    assert run.regret(600) < 0.13
    assert run.regret(1200) < limit(run)


@pytest.mark.slow
@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("streams", [2, 8, 64])
@pytest.mark.parametrize("name", STEPS)
def test_so_do_many(name: str, streams: int, chance: float) -> None:
    run = loop(name, streams, chance, quiet)
    assert run.regret(1000) < 0.13
    assert run.regret(1000 if streams < 64 else 300) < limit(run)


@pytest.mark.parametrize("streams", [1, 8])
def test_a_machine_that_is_busy_in_bursts_makes_drafts_no_loss(streams: int) -> None:
    for name, chance in itertools.product(list(STEPS)[:2], CHANCES[1::2]):
        run = loop(name, streams, chance, bursts)
        run.run(500)
        assert run.run(500) > 0.98 * run.constant(0), (name, chance)


@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize("chance", [0.7, 0.9])
def test_drafts_of_a_head_cost_many_streams_little(chance: float, gathered: bool) -> None:
    """Each row costs as much as all that drafts save, and they cost something beside it. A head
    tells nothing of what it doesn't draft: so attempts go on as long as they are right."""
    machine = Machine(lambda rows: max(0.024, 0.0037 * rows), beside=0.003, noise=quiet)
    run = CoreLoop(machine, [chance] * 16, gathered=gathered, told=False)
    run.run(300)
    assert run.run(300) > 0.98 * run.constant(0)


@pytest.mark.parametrize("streams", [8, 16, 64])
@pytest.mark.parametrize("chance", [0.3, 0.6])
def test_many_streams_lose_less_than_two_percent_from_their_first_step_on(
    streams: int, chance: float
) -> None:
    """Short answers, as of a burst, after one stream that drafts made fast: what they gained there
    may not be spent here. Up to 4 rows weights' reading takes the time, as in a model of 0.5 B."""

    def step(rows: int) -> float:
        return max(0.0155, 0.006 + 0.0023 * rows)

    shares = []
    for seed in range(6):
        machine = closed_loop.Machine(step, beside=0.0001, jitter=0.1, each=0.0023)
        run = ClosedLoop(machine, [Stream(lambda _: 0.85, share=0.7)], seed=seed)
        run.run(6.0)
        many, begun = [Stream(lambda _: chance, share=0.3) for _ in range(streams)], run.seconds
        run.go_on(many)
        seconds = step(streams) * (1.0 + machine.jitter / 2)
        run.run(64 * seconds)
        steps = (run.seconds - begun) / seconds
        shares.append(sum(stream.tokens for stream in many) / steps / streams)
    assert sum(shares) / len(shares) > 0.98, shares


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.floats(0.0, 0.03),
    st.floats(0.0, 0.005),
    st.integers(1, 8),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    st.sampled_from([quiet, bursts]),
    st.booleans(),
)
def test_drafts_never_cost_more_than_two_percent(
    fixed: float,
    each: float,
    tile: int,
    chances: list[float],
    noise: Callable[..., Callable[[], float]],
    gathered: bool,
) -> None:
    """Whatever rows cost, in tiles of any size, and whoever is foretold how well."""
    machine = Machine(
        lambda rows: 0.001 + fixed + each * tile * -(-rows // tile), beside=BESIDE, noise=noise
    )
    run = CoreLoop(machine, chances, gathered=gathered)
    met("tokens that are foretold well", max(chances) > 0.5)
    met("and badly", min(chances) < 0.5)
    run.run(300)
    assert run.run(400) > 0.98 * run.constant(0)
