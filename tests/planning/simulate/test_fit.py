"""The fit finds the cost that a recording was made with; a recording's traffic is the trace."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.config.settings import CacheSettings, EngineConfig, RecordSettings, SchedulerSettings
from penstock.errors import InvalidRequest
from penstock.protocol.to_worker import SlotWork
from penstock_engine.record.framing import log_files
from penstock_engine.record.recorder import CoreRecorder
from penstock_engine.record.replay import replay
from penstock_planning.simulate import cost
from penstock_planning.simulate.commands import Synthetic, Traffic, synthetic
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.fit import Measured, fit_cost, measured_steps
from penstock_planning.simulate.metrics import Slo
from penstock_planning.simulate.report import report_of
from penstock_planning.simulate.simulation import Simulation, SimulationOptions
from penstock_planning.simulate.trace import read_trace, write_trace

TRUE = StepCost(base_ms=6.0, token_ms=0.3, sequence_ms=0.7, context_ms=0.0015)


def recorded_simulation(folder: Path, **options: Any) -> Simulation:
    """A simulation whose engine core is recorded."""
    config = EngineConfig(
        cache=CacheSettings(num_kv_blocks=300),
        scheduler=SchedulerSettings(max_num_seqs=12, max_num_batched_tokens=128),
    )
    simulation = Simulation(config, SimulationOptions(cost=TRUE, **options))
    replica: Any = simulation.replicas[0]
    recorder = CoreRecorder(replica.core, RecordSettings(record_dir=str(folder)))
    replica.core = recorder
    recorder.step(0.0)  # The snapshot holds what came before it; here nothing of the trace.
    simulation.run(synthetic(Synthetic(rate=8.0, requests=300, seed=2)))
    recorder.close()
    return simulation


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulation, Path]:
    folder = tmp_path_factory.mktemp("recorded")
    return recorded_simulation(folder), folder


def test_the_fit_finds_the_cost(recorded: tuple[Simulation, Path]) -> None:
    simulation, folder = recorded
    fitted = fit_cost(measured_steps(log_files([str(folder)])))
    for name in cost.TERMS:
        assert getattr(fitted.cost, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    assert fitted.cost.overhead_ms == pytest.approx(0.0, abs=1e-6)
    assert fitted.error_percent < 1e-6
    assert fitted.steps == report_of(simulation).steps


def test_steps_with_drafts_say_nothing_of_those_without(tmp_path: Path) -> None:
    """Their rows are unknown until the worker has drafted."""
    recorded_simulation(tmp_path, draft_tokens=4, acceptance=0.6)
    fitted = fit_cost(measured_steps(log_files([str(tmp_path)])))
    for name in cost.TERMS:
        assert getattr(fitted.cost, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)


def test_the_recording_replays(recorded: tuple[Simulation, Path]) -> None:
    for path in log_files([str(recorded[1])]):
        done = replay(path)
        assert done.difference is None
        assert done.steps > 1000


def test_the_recordings_traffic_is_the_trace(
    recorded: tuple[Simulation, Path], tmp_path: Path
) -> None:
    simulation, folder = recorded
    traffic = Traffic(Slo(1.0, 0.1))
    for path in log_files([str(folder)]):
        traffic.read(path)
    assert traffic.metrics.ttft.counts == simulation.metrics.ttft.counts
    assert traffic.metrics.itl.counts == simulation.metrics.itl.counts
    assert traffic.metrics.e2e.counts == simulation.metrics.e2e.counts
    original = list(synthetic(Synthetic(rate=8.0, requests=300, seed=2)))
    write_trace(tmp_path / "trace", traffic.trace)
    read = list(read_trace(str(tmp_path / "trace")))
    assert [one.num_prompt for one in read] == [one.num_prompt for one in original]
    assert [one.output_tokens for one in read] == [one.output_tokens for one in original]
    begun = original[0].at
    assert [one.at for one in read] == pytest.approx([one.at - begun for one in original])


def noisy_steps(count: int) -> list[Measured]:
    rng = random.Random(3)
    steps = []
    for _ in range(count):
        sequences = rng.randint(1, 32)
        tokens = sequences + rng.choice([0, 0, 0, rng.randint(1, 400)])
        pairs = tokens * rng.randint(50, 800)
        row = (1.0, float(tokens), float(sequences), float(pairs))
        exact = 1000 * TRUE.seconds(tokens, sequences, pairs)
        late = 50.0 if rng.random() < 0.005 else 1.0
        steps.append(Measured(row, exact * rng.lognormvariate(0, 0.05) * late, 0.4))
    return steps


def test_the_fit_bears_noise_and_stray_steps() -> None:
    fitted = fit_cost(noisy_steps(4000))
    for name in cost.TERMS:
        assert getattr(fitted.cost, name) == pytest.approx(getattr(TRUE, name), rel=0.1)
    assert fitted.cost.overhead_ms == pytest.approx(0.4)
    assert 1 < fitted.error_percent < 6
    assert abs(fitted.total_error_percent) < 2


def test_a_stretch_in_which_the_machine_did_something_else_is_left_out() -> None:
    steps = noisy_steps(2000)
    undisturbed = fit_cost(steps)
    for step in steps[500:1100]:
        step.compute *= 1.8
    fitted = fit_cost(steps)
    for name in cost.TERMS:
        expected = getattr(undisturbed.cost, name)
        assert getattr(fitted.cost, name) == pytest.approx(expected, rel=0.02)
    assert fitted.cost.spread == pytest.approx(undisturbed.cost.spread, rel=0.02)
    assert fitted.left_out_percent == pytest.approx(30.0)
    assert undisturbed.left_out_percent == 0.0


def test_sizes_that_were_only_seen_while_the_machine_was_busy_do_not_make_tokens_dear() -> None:
    """Where a scheduler makes smaller steps because the machine is slow, there are no others of
    their size."""
    steps = noisy_steps(2000)
    for step in steps[500:900]:
        one, _, sequences, pairs = step.row
        tokens, pairs = sequences + 20, 20.0 * (pairs / step.row[1])
        step.row = (one, tokens, sequences, pairs)
        step.compute = 1.9 * 1000 * TRUE.seconds(int(tokens), int(sequences), int(pairs))
    fitted = fit_cost(steps)
    for name in cost.TERMS:
        assert getattr(fitted.cost, name) == pytest.approx(getattr(TRUE, name), rel=0.1)


def test_what_is_dear_by_itself_is_not_left_out() -> None:
    """Large batches cost more than in proportion, and come in a row: that is no disturbance."""
    steps = [
        Measured((1.0, float(n), float(n), 0.0), (10.0 + n) * (1.0 if n < 32 else 2.0), 0.0)
        for n in (1, 2, 4, 8, 16, 32, 64)
        for _ in range(40)
    ]
    assert fit_cost(steps).left_out_percent == 0.0


def test_no_coefficient_is_negative() -> None:
    """Here the best fit without that rule would have one: time falls with the sequences."""
    rng = random.Random(1)
    steps = []
    for _ in range(200):
        sequences = rng.randint(1, 20)
        row = (1.0, 100.0 - sequences, float(sequences), 0.0)
        steps.append(Measured(row, 30.0 - sequences, 0.0))
    fitted = fit_cost(steps)
    found = fitted.cost
    assert min(found.base_ms, found.token_ms, found.token_ms + found.sequence_ms) >= 0
    assert found.seconds(100, 5, 0) > found.seconds(50, 5, 0) > 0


def test_tokens_that_cost_nothing_up_to_a_number_of_them_are_found() -> None:
    """Weights are read for some tokens as fast as for one; a prompt's tokens then cost more."""
    true = StepCost(base_ms=8.0, hidden_ms=0.5, token_ms=0.3, sequence_ms=-0.2)
    steps = []
    for number in range(600):
        sequences = 1 + number % 40
        tokens = sequences + (number % 7) * 30 * (number % 3 == 0)
        row = (1.0, float(tokens), float(sequences), 0.0)
        steps.append(Measured(row, 1000 * true.seconds(tokens, sequences, 0), 0.0))
    fitted = fit_cost(steps)
    for sequences in (1, 8, 16, 24, 64):
        for more in (0, 300):
            tokens = sequences + more
            expected = true.seconds(tokens, sequences, 0)
            assert fitted.cost.seconds(tokens, sequences, 0) == pytest.approx(expected, rel=1e-6)
    assert (fitted.cost.base_ms, fitted.cost.hidden_ms) == pytest.approx((8.0, 0.5))


def test_the_spread_is_that_of_the_steps() -> None:
    steps = [
        Measured((1.0, float(n), float(n), 0.0), (10.0 + n) * (1.5 if n % 5 == 0 else 1.0), 0.0)
        for n in list(range(1, 41)) * 10
    ]
    spread = fit_cost(steps).cost.spread
    assert list(spread) == sorted(spread)
    assert spread[-1] / spread[len(spread) // 2] == pytest.approx(1.5, rel=0.1)
    assert spread[len(spread) // 4] / spread[len(spread) // 2] == pytest.approx(1.0, rel=0.1)


def test_short_steps_have_a_spread_of_their_own() -> None:
    """Every fifth step of one sequence takes twice as long, and of those of many none does."""
    steps = []
    for number in range(1200):
        sequences = 1 if number % 2 else 20 + number % 3
        late = 2.0 if number % 2 and number % 5 == 0 else 1.0
        row = (1.0, float(sequences), float(sequences), 0.0)
        steps.append(Measured(row, late * 1000 * TRUE.seconds(sequences, sequences, 0), 0.0))
    found = fit_cost(steps).cost
    short, long = (found.spread_of(found.seconds(count, count, 0)) for count in (1, 21))
    assert len(found.by_size) > 1
    assert sum(ratio > 1.9 for ratio in short) / len(short) == pytest.approx(0.2)
    assert max(long) == pytest.approx(1.0, abs=0.01)
    # Beyond what was measured, steps are like the longest of it.
    assert found.spread_of(10.0) == found.by_size[-1].spread


def test_what_holds_a_step_up_for_a_moment_is_little_of_a_long_one() -> None:
    """Some 60 of 2000 steps are long, and each fifth takes 30 ms more than the others."""
    steps = []
    for number in range(2000):
        tokens, late = (600.0 if number % 33 == 0 else 20.0), 30.0 * (number % 5 == 0)
        row = (1.0, tokens, 1.0, 0.0)
        steps.append(Measured(row, 1000 * TRUE.seconds(int(tokens), 1, 0) + late, 0.0))
    found = fit_cost(steps).cost
    short, long = (found.seconds(tokens, 1, 0) for tokens in (20, 600))
    for seconds in (short, long):
        assert max(found.spread_of(seconds)) == pytest.approx(1 + 0.03 / seconds, rel=0.02)


def test_too_few_steps_are_no_fit() -> None:
    with pytest.raises(InvalidRequest, match="3 measured steps"):
        fit_cost(noisy_steps(3))


def test_the_extent_of_work_counts_pairs_token_by_token() -> None:
    work = [SlotWork(0, 10, 4), SlotWork(1, 0, 3), SlotWork(2, 99, 1)]
    pairs = sum(at + 1 for part in work for at in range(part.start, part.start + part.count))
    assert cost.extent(work) == (8, pairs)


def test_a_cost_is_read_from_words_or_a_file(tmp_path: Path) -> None:
    assert cost.parse("base=5,token=0.1") == StepCost(
        base_ms=5.0, token_ms=0.1, sequence_ms=0.0, context_ms=0.0
    )
    fitted = fit_cost(noisy_steps(100))
    (tmp_path / "cost.json").write_bytes(msgspec.json.encode(fitted))
    assert cost.parse(str(tmp_path / "cost.json")) == fitted.cost
    for bad in ("base=x", "base=-1", "speed=3", "base=inf", "/no/such/file"):
        with pytest.raises(InvalidRequest, match="step cost"):
            cost.parse(bad)
