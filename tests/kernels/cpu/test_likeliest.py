"""The most likely token of each row against numpy's: of logits in memory, with memory that is used
again, and of logits that never get there."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_kernels.cpu.decoder_step import DecoderStep
from penstock_kernels.cpu.likeliest import Likeliest
from penstock_kernels.cpu.sampler import Row, sample
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder
from tests.met import met
from tests.thinning import part

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("isa")]


def slow(logits: np.ndarray) -> list[int]:
    return [int(np.argmax(row)) if np.isfinite(row).all() else -1 for row in logits]


def test_steps_of_any_size_one_after_another() -> None:
    rng = np.random.default_rng(4)
    likeliest = Likeliest(threads=2)
    for _ in range(60):
        shape = int(rng.choice([0, 1, 1, 2, 5, 33, 64])), int(rng.choice([1, 17, 129, 5000]))
        logits = rng.standard_normal(shape).astype(np.float32)
        if rng.random() < 0.5:
            logits = logits.round()  # Many are equal, of these some -0.
        for row in np.flatnonzero(rng.random(len(logits)) < 0.1):
            logits[row, rng.integers(shape[1])] = rng.choice([np.nan, np.inf, -np.inf])
        before = logits.copy()
        found = likeliest.tokens(logits)
        assert found == slow(logits)
        assert found == sample(logits, [Row(temperature=0.0)] * len(logits)).tokens.tolist()
        assert np.array_equal(logits, before, equal_nan=True)


@settings(settings.get_profile("kernels"), max_examples=part(16, 1 / 4))
@given(
    vocab=st.integers(2, 200),
    rows=st.integers(1, 40) | st.integers(60, 150),
    threads=st.integers(1, 3),
    capped=st.booleans(),
    odd=st.sampled_from([0.0, np.nan, np.inf, -np.inf]),
    seed=st.integers(0, 1 << 30),
)
def test_of_a_forward_pass(
    vocab: int, rows: int, threads: int, capped: bool, odd: float, seed: int
) -> None:
    """Each row is a sequence of its own. With a cap that most logits reach, many are equal; the
    embedding of token 1 isn't finite."""
    sizes = Sizes(hidden=64, inner=32, layers=1, vocab=vocab, seed=seed)
    if capped:
        sizes = dataclasses.replace(sizes, logits_soft_cap=2.0, logits_multiplier=50.0)
    model = SlowDecoder(sizes)
    model.embedding.source.data.view(np.float32).reshape(vocab, 64)[1, seed % 64] += odd
    decoder = model.packed(num_blocks=rows, threads=threads)
    rng = np.random.default_rng(seed)
    each = np.arange(rows, dtype=np.int32)
    step = DecoderStep(
        tokens=rng.integers(vocab, size=rows, dtype=np.int32),
        first_row=np.arange(rows + 1, dtype=np.int32),
        starts=np.zeros(rows, np.int32),
        tables=each,
        first_block=each,
    )
    if seed % 2:
        step.tokens[rng.integers(rows)] = 1
    wanted = rng.permutation(rows)[: rng.integers(rows + 1)].astype(np.int32)
    logits = decoder.logits(step, wanted)
    assert decoder.likeliest(step, wanted).tolist() == slow(logits)
    met("equal logits", capped and len(wanted))
    met("logits that aren't finite", (~np.isfinite(logits)).any())
    assert (~np.isfinite(logits)).any() == (odd != 0 and 1 in step.tokens[wanted])


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Likeliest(0)
    for shape in ((4,), (1, 0), (1, 2, 3)):
        with pytest.raises(ValueError, match="is needed"):
            Likeliest().tokens(np.zeros(shape, np.float32))
