"""The whole forward pass against float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from penstock_kernels.cpu.matrix import MatrixKind
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder, true_logits
from tests.kernels.cpu.steps import Run, chunks, random_steps, random_tokens

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]

SHAPES = {
    "9 heads on 3": Sizes(heads=9, kv_heads=3, head_dim=64, hidden=576, inner=1536),
    "5 on 1, odd widths": Sizes(heads=5, kv_heads=1, head_dim=48, hidden=60, inner=90),
    "7 on 7, norms": Sizes(heads=7, kv_heads=7, head_dim=16, hidden=100, inner=112, qk_norm=True),
    "bias, inner of 3 x 16": Sizes(heads=6, kv_heads=2, head_dim=32, inner=48, bias=True),
    "inner of 16, one layer": Sizes(heads=1, kv_heads=1, inner=16, layers=1, hidden=33),
    "32 heads on 1": Sizes(heads=32, kv_heads=1, vocab=1000),
    "head of 256": Sizes(heads=2, kv_heads=1, head_dim=256, qk_norm=True, bias=True),
    "no layers": Sizes(layers=0, hidden=50),
}


def distance(ours: np.ndarray, true: np.ndarray) -> float:
    """Largest difference in a row, of the row's largest logit; the worst row's."""
    assert ours.shape == true.shape
    return float((np.abs(ours - true).max(-1) / np.abs(true).max(-1)).max())


@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_shapes_in_float32(sizes: Sizes, threads: int) -> None:
    """A ragged batch in random chunks."""
    model = SlowDecoder.of(sizes)
    lengths = [33, 1, 16, 17]
    sequences = [random_tokens(sizes.vocab, n, n) for n in lengths]
    run = Run(model.packed(num_blocks=12, threads=threads), sequences)
    run.steps(random_steps(lengths, seed=threads))
    for which, tokens in enumerate(sequences):
        assert distance(run.of(which), true_logits(model.sizes, tuple(tokens))) < 2e-5


@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_shapes_with_an_int8_cache(sizes: Sizes, threads: int) -> None:
    """Where no rounding falls the other way, as near as in float32: so are most logits; a byte that
    does is 0.8 % of its head's largest magnitude."""
    model = SlowDecoder.of(dataclasses.replace(sizes, cache="int8"))
    lengths = [33, 1, 16, 17]
    sequences = [random_tokens(sizes.vocab, n, n) for n in lengths]
    run = Run(model.packed(num_blocks=12, threads=threads), sequences)
    run.steps(random_steps(lengths, seed=threads))
    for which, tokens in enumerate(sequences):
        ours, true = run.of(which), true_logits(model.sizes, tuple(tokens))
        assert distance(ours, true) < 0.04
        typical = np.abs(ours - true).mean() / np.abs(true).mean()
        assert typical < 0.004


@pytest.mark.parametrize(
    ("format", "kind", "bound"),
    [
        ("F32", MatrixKind.BF16, 0.04),
        ("BF16", None, 0.04),
        ("F32", MatrixKind.S8H, 0.04),
        ("Q8_0", None, 0.04),
        ("Q4_0", None, 0.04),
        ("Q4_1", None, 0.04),
        ("Q5_0", None, 0.04),
        ("Q5_1", None, 0.04),
    ],
)
def test_other_kinds(format: str, kind: MatrixKind | None, bound: float) -> None:
    """The slow model rounds where the kernels do, so the bound is for roundings that fall the
    other way: a bfloat16's last bit is 0.4 %, a signed byte's step 0.8 % of a group's peak."""
    sizes = Sizes(
        hidden=96, inner=160, heads=6, kv_heads=2, head_dim=32, format=format, kind=kind,
        cache="bfloat16",
    )  # fmt: skip
    model = SlowDecoder.of(sizes)
    tokens = random_tokens(sizes.vocab, 40, 9)
    run = Run(model.packed(num_blocks=3), [tokens]).steps(chunks(0, 40, 40))
    true = true_logits(model.sizes, tuple(tokens))
    assert distance(run.of(0), true) < bound
    typical = np.abs(run.of(0) - true).mean() / np.abs(true).mean()
    assert typical < bound / 4


@pytest.mark.parametrize("format", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_k_quants(format: str) -> None:
    sizes = Sizes(
        hidden=256, inner=256, heads=8, kv_heads=2, head_dim=32, format=format, cache="bfloat16"
    )
    model = SlowDecoder.of(sizes)
    tokens = random_tokens(sizes.vocab, 20, 9)
    run = Run(model.packed(num_blocks=3), [tokens]).steps(chunks(0, 20, 20))
    assert distance(run.of(0), model.logits(tokens)) < 0.04


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cache", ["float32", "bfloat16", "int8"])
def test_long_contexts(threads: int, cache: str) -> None:
    """Over several splits of the keys: a long prefill whole, then decode, then a chunk."""
    sizes = Sizes(hidden=32, inner=32, heads=5, kv_heads=1, layers=1, positions=1400, cache=cache)
    model = SlowDecoder.of(sizes)
    tokens = random_tokens(sizes.vocab, 1300, 1)
    run = Run(model.packed(num_blocks=82, threads=threads), [tokens])
    run.steps([[(0, 1050)], *chunks(0, 200, 1), [(0, 50)]])
    assert distance(run.of(0), true_logits(model.sizes, tuple(tokens))) < (
        2e-5 if cache == "float32" else 0.02
    )


def test_rows_that_are_asked_for() -> None:
    """Logits come in the order of `rows`, of any rows, and of none."""
    from penstock_kernels.cpu.decoder_step import DecoderStep

    model = SlowDecoder.of(Sizes())
    tokens = np.array(random_tokens(77, 12, 3), np.int32)
    zero = np.zeros(1, np.int32)
    step = DecoderStep(tokens, np.array([0, 12], np.int32), zero, zero, zero)
    decoder = model.packed(num_blocks=1)
    whole = decoder.logits(step, np.arange(12, dtype=np.int32))
    rows = np.array([11, 0, 5, 5], np.int32)
    assert np.array_equal(decoder.logits(step, rows), whole[rows])
    assert decoder.logits(step, np.empty(0, np.int32)).shape == (0, 77)
    assert decoder.layers_done == 3 * model.sizes.layers


def test_watched_steps_say_where_time_goes() -> None:
    """Each phase that a step runs has been computed for some time, no longer than the step took;
    what comes out is the same."""
    import time

    model = SlowDecoder.of(Sizes())
    sequences = [random_tokens(model.sizes.vocab, 40, 1)]
    runs = [Run(model.packed(num_blocks=3, threads=2), sequences) for _ in range(2)]
    ticks = runs[1].decoder.watch()
    assert ticks.shape == (2, len(runs[1].decoder.program.phases), 2)
    begun = time.perf_counter_ns()
    for run in runs:
        run.steps(chunks(0, 40, 20))
    seconds = time.perf_counter_ns() - begun
    assert np.array_equal(runs[0].of(0), runs[1].of(0))
    assert (ticks >= 0).all()
    assert (ticks[..., 0].sum(axis=0) > 0).all()
    assert (ticks.sum(axis=(1, 2)) <= seconds).all()
