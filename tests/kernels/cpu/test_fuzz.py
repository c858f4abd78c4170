"""Random shapes, formats and batches, against the slow models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_kernels.cpu.matrix import MatrixKind, product
from tests.kernels.cpu import slow
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder
from tests.kernels.cpu.sources import WAYS, WIDTH, random_source
from tests.kernels.cpu.steps import Run, random_steps, random_tokens
from tests.met import met
from tests.thinning import part

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]


@st.composite
def matrices(draw: st.DrawFn) -> tuple[str, MatrixKind | None, int, int]:
    """(format, kind, outputs, inputs)."""
    format, kind = draw(st.sampled_from(WAYS))
    unit = WIDTH[format]
    most = {1: 400, 32: 12, 64: 6, 256: 3}[unit]
    return format, kind, draw(st.integers(1, 100)), unit * draw(st.integers(1, most))


@settings(settings.get_profile("kernels"), max_examples=part(100, 1 / 4))
@given(
    matrix=matrices(),
    rows=st.integers(1, 40),
    threads=st.integers(1, 3),
    with_bias=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_any_product_equals_float64s(
    matrix: tuple[str, MatrixKind | None, int, int],
    rows: int,
    threads: int,
    with_bias: bool,
    seed: int,
) -> None:
    format, kind, outputs, inputs = matrix
    rng = np.random.default_rng(seed)
    source = random_source(format, outputs, inputs, seed)
    order = rng.permutation(outputs).astype(np.int32)
    bias = rng.standard_normal(outputs).astype(np.float32) if with_bias else np.zeros(outputs)
    packed = source.packed(
        kind=kind, order=order, bias=bias if with_bias else None, threads=threads
    )
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    true, bound = slow.product(x, slow.weights_as(source, kind), MatrixKind(packed.struct.kind))
    ours = product(x, packed, threads=threads)[:, order]
    assert (np.abs(ours - (true + bias[order])) <= bound + 2e-6 * np.abs(bias).max()).all()
    row = seed % rows
    met("a row of several", rows > 1)
    met("with a bias", with_bias)
    assert np.array_equal(product(x[row : row + 1], packed)[0, order], ours[row])


@st.composite
def models(draw: st.DrawFn) -> Sizes:
    kv_heads = draw(st.integers(1, 4))
    return Sizes(
        # The norm of a single number is its sign: of one near 0 it makes errors 300 times as large.
        hidden=draw(st.integers(2, 150)),
        inner=draw(st.integers(1, 150)),
        kv_heads=kv_heads,
        heads=kv_heads * draw(st.integers(1, 8)),
        head_dim=16 * draw(st.integers(1, 5)),
        vocab=draw(st.integers(2, 200)),
        layers=draw(st.integers(1, 3)),
        qk_norm=draw(st.booleans()),
        bias=draw(st.booleans()),
        positions=600,
        seed=draw(st.integers(0, 1 << 20)),
    )


@settings(settings.get_profile("kernels"), max_examples=part(12, 1 / 4))
@given(
    sizes=models(),
    lengths=st.lists(st.integers(1, 60) | st.integers(250, 280), min_size=1, max_size=4),
    pages=st.integers(1, 3),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1 << 30),
)
def test_ragged_batches(
    sizes: Sizes, lengths: list[int], pages: int, threads: int, seed: int
) -> None:
    model = SlowDecoder(sizes)
    sequences = [random_tokens(sizes.vocab, n, seed + n) for n in lengths]
    size = 16 * pages
    met("several lengths", len({*lengths}) > 1)
    met("several threads", threads > 1)
    blocks = sum(-(-n // size) for n in lengths)
    decoder = model.packed(num_blocks=blocks, block_size=size, threads=threads)
    run = Run(decoder, sequences, seed).steps(random_steps(lengths, seed, largest=100))
    for which, tokens in enumerate(sequences):
        true = model.logits(tokens)
        difference = np.abs(run.of(which) - true).max(-1)
        assert (difference <= 1e-4 * np.abs(true).max()).all()
