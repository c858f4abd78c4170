"""Phases of recurrent layers against float64, and the same bits in any pieces, company and threads,
with checkpoints anywhere."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.program import Program
from penstock_kernels.cpu.recurrent import RecurrentKind
from tests.kernels.cpu.slow_recurrent import RecurrentSteps, Shape, SlowRecurrent

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("loaded")]
on_each_instruction_set = pytest.mark.usefixtures("isa")

CONV, DELTA, MAMBA, MAMBA1 = RecurrentKind
SHAPES = {
    "convolution": Shape(CONV, kernel=3, width=77),
    "convolution of 64 tokens": Shape(CONV, kernel=64, width=5, bias=False),
    "delta": Shape(DELTA, kernel=4, key_heads=2, heads=6, key_dim=5, value_dim=7, bias=False),
    "delta, tiled": Shape(
        DELTA, kernel=2, key_heads=2, heads=4, key_dim=16, value_dim=32, tiled=True
    ),
    "delta, wide": Shape(DELTA, kernel=1, heads=2, key_dim=67, value_dim=72),
    "delta, overshooting": Shape(
        DELTA, kernel=3, heads=2, key_dim=12, value_dim=20, bias=False, strongest=2.0
    ),
    "delta by channel": Shape(
        DELTA,
        kernel=4,
        key_heads=2,
        heads=4,
        key_dim=13,
        value_dim=40,
        bias=False,
        by_channel=True,
        strongest=1.5,
    ),
    "mamba": Shape(MAMBA, kernel=4, key_heads=2, heads=6, key_dim=7, value_dim=5, norm_groups=3),
    "mamba, limited": Shape(
        MAMBA, kernel=4, heads=3, key_dim=24, value_dim=48, bias=False, steps=(0.3, 0.9)
    ),
    "mamba 1": Shape(MAMBA1, kernel=4, key_dim=16, value_dim=90),
    "mamba 1, no norms": Shape(MAMBA1, kernel=2, key_dim=5, value_dim=48, normed=False, bias=False),
    "mamba, one value": Shape(MAMBA, kernel=3, key_heads=5, heads=5, key_dim=1, value_dim=1),
}


def tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 90, count).tolist()


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


@on_each_instruction_set
@pytest.mark.parametrize("name", SHAPES)
def test_equals_the_formulas(name: str) -> None:
    slow, mine = SlowRecurrent(SHAPES[name]), tokens(41, 1)
    mixed, finished, state = slow.rows(mine)
    for threads, true in ((1, mixed), (2, finished)):
        run = slow.run(3, threads=threads, finished=true is finished)
        (ours,) = run.step([(1, mine)])
        assert np.abs(ours - true).max() < 2e-5 * np.abs(true).max()
        # Five numbers are another layer's.
        assert np.abs(run.memory.live[1, 5:] - state).max() < 2e-5 * np.abs(state).max()
        assert not run.memory.live[[0, 2]].any()
        assert not run.memory.live[1, :5].any()


@on_each_instruction_set
@pytest.mark.parametrize("name", SHAPES)
def test_any_pieces_any_company(name: str) -> None:
    """And checkpoints are the state behind their token."""
    slow, mine, other = SlowRecurrent(SHAPES[name]), tokens(40, 2), tokens(60, 3)
    alone = slow.run(1)
    (true,) = alone.step([(0, mine)])
    for threads, cuts in ((2, (1, 2, 17, 18)), (1, (9, 33)), (2, ())):
        run, found = slow.run(4, threads=threads), []
        for low, high in zip([0, *cuts], [*cuts, 40], strict=True):
            beside = other[low : 1 + low + (high - low) % 7]
            at = len(beside)
            due = [(at + token - low, token) for token in range(low, high) if token % 6 == 5]
            found.append(run.step([(2, beside), (3, mine[low:high])], checkpoints=due)[1])
        assert np.array_equal(bits(np.concatenate(found)), bits(true))
        assert np.array_equal(bits(run.memory.live[3]), bits(alone.memory.live[0]))
        for token in range(5, 40, 6):
            before = slow.run(1)
            before.step([(0, mine[: token + 1])])
            assert np.array_equal(bits(run.copy(token)), bits(before.memory.live[0]))


@on_each_instruction_set
@pytest.mark.parametrize("name", ["convolution", "delta", "delta by channel", "mamba", "mamba 1"])
def test_a_token_that_is_asked_for_again(name: str) -> None:
    """It has the same results, and the state stays; a checkpoint behind it can be written then."""
    slow, mine = SlowRecurrent(SHAPES[name]), tokens(9, 4)
    run = slow.run(2, threads=2, finished=True)
    (true,) = run.step([(1, mine)])
    state = run.memory.live.copy()
    (_, found) = run.step(
        [(0, mine[:3]), (1, mine[-1:])], again=frozenset({1}), checkpoints=[(3, 2)]
    )
    assert np.array_equal(bits(found[0]), bits(true[-1]))
    assert np.array_equal(bits(run.memory.live[1]), bits(state[1]))
    assert np.array_equal(bits(run.copy(2)), bits(state[1]))


@on_each_instruction_set
@pytest.mark.parametrize("name", ["delta", "delta by channel", "mamba", "mamba 1"])
@pytest.mark.parametrize("value", [3e38, -3e38, 88.5, -88.5, -0.0, 1e-40])
def test_steps_in_time_and_strengths_of_any_size(name: str, value: float) -> None:
    slow, mine = SlowRecurrent(SHAPES[name]), tokens(5, 5)
    layer = slow.layer
    if layer.kind is MAMBA1:
        value = min(value, 88.5)  # no step is too large, and then products overflow
    for first in (layer.time, layer.strength):
        count = len(layer.time_bias) if first == layer.time else layer.heads
        slow.features[:, first : first + count] = value
    if layer.kind is MAMBA and value > 1e4:
        slow.layer = dataclasses.replace(layer, steps=(0.0, 4.0))
        slow.shape = dataclasses.replace(slow.shape, steps=(0.0, 4.0))
    true = slow.rows(mine)[0]
    (ours,) = slow.run(1).step([(0, mine)])
    assert np.abs(ours - true).max() <= 2e-5 * np.abs(true).max() + 1e-30


@on_each_instruction_set
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_sequence(name: str, value: float) -> None:
    slow, mine = SlowRecurrent(SHAPES[name]), tokens(12, 6)
    (true,) = slow.run(1).step([(0, mine)])
    slow.features = np.concatenate((slow.features, np.full((1, slow.columns), value, np.float32)))
    slow.shape = dataclasses.replace(slow.shape, vocab=91)
    run = slow.run(2, threads=2)
    poisoned, found = run.step([(1, [3, 90, 4]), (0, mine)])
    assert np.array_equal(bits(found), bits(true))
    assert np.isfinite(poisoned[0]).all()
    assert not np.isfinite(poisoned[1]).any()


def wrong(slow: SlowRecurrent, **fields: object) -> Program:
    program, layer = slow.program(finished=True), dataclasses.replace(slow.layer, **fields)
    phases = (
        each if each.recurrent is None else dataclasses.replace(each, recurrent=layer)
        for each in program.phases
    )
    return dataclasses.replace(program, phases=tuple(phases))


SIZES = ("first", "gate", "strength", "time", "width", "heads", "key_heads", "key_dim", "value_dim")
UNUSED = {"convolution": SIZES[3:4] + SIZES[5:], "mamba": ("strength",)}


@pytest.mark.parametrize("value", [-1, 1 << 20])
@pytest.mark.parametrize("name", ["convolution", "delta", "delta by channel", "mamba", "mamba 1"])
def test_a_layer_that_does_not_fit_is_refused(name: str, value: int) -> None:
    for field in SIZES:
        if field not in UNUSED.get(name, ()):
            program = wrong(SlowRecurrent(SHAPES[name]), **{field: value})
            with pytest.raises(ValueError, match="doesn't fit"):
                Decoder(program, 16, 1, "float32", 1)


def test_states_of_another_size_are_refused() -> None:
    slow = SlowRecurrent(SHAPES["delta"])
    run = slow.run(2)
    wide = np.zeros((2, run.program.state_numbers + 1), dtype=np.float32)
    run.memory = dataclasses.replace(run.memory, live=wide)
    with pytest.raises(ValueError, match="live states are float32 of shape"):
        run.step([(0, [1])])
    other = RecurrentSteps(slow.program(), 2, 1)
    other.memory = dataclasses.replace(other.memory, last=other.memory.last[:, ::2])
    with pytest.raises(ValueError, match="last states are float32 of shape"):
        other.step([(0, [1])])
