"""A sequence's logits are the same bits whatever else a step holds and however it was cut."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from penstock_kernels.cpu.matrix import MatrixKind
from penstock_kernels.cpu.memory import Scratch, zeroed
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder
from tests.kernels.cpu.steps import Run, chunks, random_steps, random_tokens

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]

BASE = Sizes(hidden=96, inner=112, heads=6, kv_heads=2, positions=700, layers=2)
MODELS = {
    "F32": BASE,
    "bfloat16": dataclasses.replace(
        BASE,
        kind=MatrixKind.BF16,
        cache="bfloat16",
        qk_norm=True,
        heads=14,  # Attention then has numbers of rows that aren't multiples of a few.
    ),
    "Q4_0": dataclasses.replace(
        BASE,
        format="Q4_0",
        inner=128,
        cache="bfloat16",
        bias=True,
        head_dim=32,
        heads=3,
        kv_heads=1,
    ),
    "int8": dataclasses.replace(BASE, kind=MatrixKind.S8H, cache="int8", head_dim=48, kv_heads=3),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> SlowDecoder:
    return SlowDecoder(MODELS[request.param])


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


def test_any_company_any_chunks(model: SlowDecoder) -> None:
    lengths = [270, 1, 40, 16, 65, 520]
    sequences = [random_tokens(model.sizes.vocab, n, n) for n in lengths]
    alone = []
    for which, tokens in enumerate(sequences):
        run = Run(model.packed(num_blocks=40), sequences)
        run.steps(chunks(which, len(tokens), len(tokens)))
        alone.append(bits(run.of(which)))
    ways = [(16, 2, 5), (32, 1, 100), (48, 2, 600)]
    for seed, (block_size, threads, largest) in enumerate(ways):
        decoder = model.packed(num_blocks=64, block_size=block_size, threads=threads)
        run = Run(decoder, sequences, seed).steps(random_steps(lengths, seed, largest=largest))
        for which, expected in enumerate(alone):
            assert np.array_equal(bits(run.of(which)), expected), (block_size, threads, which)


@pytest.mark.parametrize("size", [1, 3, 8, 65, 256])
def test_chunk_sizes(model: SlowDecoder, size: int) -> None:
    tokens = random_tokens(model.sizes.vocab, 270, 4)
    whole = Run(model.packed(num_blocks=17), [tokens]).steps([[(0, 270)]]).of(0)
    for threads in (1, 2):
        run = Run(model.packed(num_blocks=17, threads=threads), [tokens])
        assert np.array_equal(bits(run.steps(chunks(0, 270, size)).of(0)), bits(whole))


def test_scratch_may_hold_anything(model: SlowDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch of zeros, and scratch full of NaN: the same bits, in every shape of step."""
    lengths = [270, 1, 19]
    sequences = [random_tokens(model.sizes.vocab, n, n) for n in lengths]

    def run(threads: int) -> list[np.ndarray]:
        run = Run(model.packed(num_blocks=24, threads=threads), sequences)
        run.steps([[(0, 260), (2, 9)], [(0, 8), (1, 1), (2, 3)], [(2, 7)], [(0, 1)], [(0, 1)]])
        return [bits(run.of(which)) for which in range(3)]

    def spoiled(scratch: Scratch, size: int) -> int:
        scratch._memory = zeroed(size)
        scratch._memory[:] = 0xFF
        return int(scratch._memory.ctypes.data)

    for threads in (1, 2):
        expected = run(threads)
        with monkeypatch.context() as patch:
            patch.setattr(Scratch, "at_least", spoiled)
            for ours, true in zip(run(threads), expected, strict=True):
                assert np.array_equal(ours, true)


def poisoned(sizes: Sizes, value: float) -> SlowDecoder:
    """Token 0 has an embedding that isn't finite."""
    model = SlowDecoder(sizes)
    source = model.embedding.source
    values = source.values.copy()
    values[0, 3] = value
    source = dataclasses.replace(source, data=values.reshape(-1).view(np.uint8), values=values)
    model.embedding = dataclasses.replace(model.embedding, source=source)
    return model


@pytest.mark.parametrize("value", [np.nan, -np.inf], ids=str)
@pytest.mark.parametrize(
    ("kind", "cache"),
    [
        (MatrixKind.F32, "bfloat16"),
        (MatrixKind.BF16, "bfloat16"),
        (MatrixKind.S8H, "bfloat16"),
        (MatrixKind.F32, "int8"),
        (MatrixKind.S8H, "int8"),
    ],
)
def test_poison_stays_in_its_sequence(value: float, kind: MatrixKind, cache: str) -> None:
    """It reaches every later position of its own, no earlier one, and no other sequence, not even
    the next one in its blocks."""
    sizes = dataclasses.replace(BASE, kind=kind, cache=cache)
    model = poisoned(sizes, value)
    clean = [random_tokens(76, n, n) for n in (300, 20, 33)]
    clean = [[token + 1 for token in tokens] for tokens in clean]
    expected = [
        bits(Run(model.packed(num_blocks=40), [tokens]).steps([[(0, len(tokens))]]).of(0))
        for tokens in clean
    ]
    for at, threads in ((9, 1), (270, 2)):
        bad = list(clean[0])
        bad[at] = 0
        sequences = [bad, *clean[1:], clean[0]]
        run = Run(model.packed(num_blocks=24, threads=threads), sequences)
        run.steps([[(1, 20), (0, 290), (2, 33)], [(0, 10)]])
        assert not np.isfinite(run.of(0)[at:]).any()
        assert np.array_equal(bits(run.of(0)[:at]), expected[0][:at]), at
        assert np.array_equal(bits(run.of(1)), expected[1])
        assert np.array_equal(bits(run.of(2)), expected[2])
        run.free(0)
        run.steps(chunks(3, 300, 97))
        assert np.array_equal(bits(run.of(3)), expected[0])
