"""Each mechanism of a layer against float64, and its bits in any company and any chunks."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from penstock.model.attention_spec import AttentionSpec
from penstock.model.layer_spec import XIELU, ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock_kernels.cpu.matrix import MatrixKind
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder, true_logits
from tests.kernels.cpu.steps import Run, chunks, random_steps, random_tokens
from tests.kernels.cpu.test_decoder import distance

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]


def attention(**fields: object) -> LayerSpec:
    return LayerSpec(attention=AttentionSpec(**fields))


def feed_forward(**fields: object) -> LayerSpec:
    return LayerSpec(feed_forward=FeedForwardSpec(**fields))


def sizes(*specs: LayerSpec, **fields: object) -> Sizes:
    base = Sizes(heads=6, kv_heads=2, hidden=72, inner=100, positions=700, layers=2)
    return dataclasses.replace(base, specs=specs, **fields)


def experts(count: int, active: int, **fields: object) -> ExpertsSpec:
    """Experts of the same inner size as the models' other feed-forwards."""
    return ExpertsSpec(count=count, active=active, inner=100, **fields)


LAYER_NORM = NormSpec(kind="layer", eps=1e-5, bias=True)
MODELS = {
    "window of 5": sizes(attention(window=5)),
    "window of 16": sizes(attention(window=16), head_dim=32),
    "window of 257, then all": sizes(attention(window=257), LayerSpec()),
    "window of 1": sizes(attention(window=1)),
    "chunks of 24": sizes(attention(chunk=24)),
    "scale": sizes(attention(scale=0.4)),
    "soft cap": sizes(attention(soft_cap=0.7)),
    "soft cap in a window": sizes(attention(soft_cap=3.0, window=40)),
    "sinks": sizes(attention(sinks=True)),
    "sinks in a window": sizes(attention(sinks=True, window=9)),
    "no rotation": sizes(attention(rope=None), LayerSpec()),
    "two rotations": sizes(attention(rope=1), LayerSpec(), rotations=(None, None)),
    "rotation in part": sizes(LayerSpec(), head_dim=32, rotations=(12,)),
    "output bias": sizes(attention(output_bias=True, qkv_bias=True)),
    "feed-forward bias": sizes(feed_forward(bias=True)),
    "gelu": sizes(feed_forward(activation="gelu")),
    "gelu by tanh": sizes(feed_forward(activation="gelu_tanh")),
    "gelu by a sigmoid": sizes(feed_forward(activation="quick_gelu", gated=False, bias=True)),
    "squared relu": sizes(feed_forward(activation="relu2")),
    "learned coefficients": sizes(
        feed_forward(activation="xielu", xielu=XIELU(0.7, -0.4, 0.5, -1e-6), gated=False)
    ),
    "clamped swiglu": sizes(feed_forward(activation="clamped_swiglu", bias=True)),
    "experts with a clamped swiglu": sizes(
        feed_forward(activation="clamped_swiglu", bias=True, experts=experts(5, 2))
    ),
    "growing queries": sizes(LayerSpec(), query_growth=0.4),
    "growing queries, norms over all heads": sizes(attention(norm="whole"), query_growth=0.4),
    "ungated": sizes(feed_forward(activation="gelu", gated=False, bias=True)),
    "norms behind": sizes(LayerSpec(order="post")),
    "norms on both sides": sizes(LayerSpec(order="sandwich", residual_multiplier=0.5)),
    "parallel": sizes(LayerSpec(order="parallel")),
    "parallel, two norms": sizes(LayerSpec(order="parallel", two_norms=True)),
    "parallel, norms over all heads": sizes(
        LayerSpec(order="parallel", attention=AttentionSpec(norm="whole"))
    ),
    "norms behind the rotation": sizes(
        attention(norm="head", norm_behind=True, qkv_bias=True), head_dim=32, query_growth=0.4
    ),
    "norms over all heads": sizes(attention(norm="whole"), head_dim=48),
    "layer norms": sizes(LayerSpec(), norm=NormSpec(kind="layer", eps=1e-5)),
    "layer norms with biases": sizes(LayerSpec(order="parallel"), norm=LAYER_NORM),
    "multipliers": sizes(
        LayerSpec(residual_multiplier=0.3), embedding_multiplier=4.0, logits_multiplier=0.25
    ),
    "experts": sizes(feed_forward(experts=experts(5, 2))),
    "all experts, ungated": sizes(
        feed_forward(experts=experts(3, 3), gated=False, activation="relu2", bias=True)
    ),
    "experts with groups and a shared one": sizes(
        feed_forward(
            experts=experts(
                8,
                3,
                router="sigmoid",
                groups=4,
                active_groups=2,
                correction=True,
                shared_inner=100,
                scale=1.7,
            )
        )
    ),
    "raw shares of experts, norms on both sides": sizes(
        LayerSpec(
            order="sandwich",
            residual_multiplier=0.7,
            feed_forward=FeedForwardSpec(experts=experts(6, 2, normalised=False, shared_inner=100)),
        ),
        LayerSpec(),
    ),
    "experts beside a gated one": sizes(
        feed_forward(experts=experts(5, 2, shared_inner=100, shared_gate=True))
    ),
    "experts whose inputs are weighed": sizes(
        feed_forward(
            experts=experts(
                5, 2, router="sigmoid", normalised=False, weighs_input=True, shared_inner=100
            )
        )
    ),
    "experts in parallel": sizes(
        LayerSpec(order="parallel", feed_forward=FeedForwardSpec(experts=experts(4, 1)))
    ),
    "gated attention": sizes(attention(output_gate=True, norm="head", qkv_bias=True)),
    "a gate of each head": sizes(attention(head_gate=True), LayerSpec(), head_dim=32),
    "more query heads with gates": sizes(
        attention(head_gate=True, query_heads=10, window=9, norm="head"),
        attention(head_gate=True, sinks=True, rope=1),
        rotations=(None, 8),
    ),
    "a soft gate of each head": sizes(
        attention(head_gate=True, soft_gate=True), attention(head_gate=True), head_dim=48
    ),
    "bounds of queries, keys and values": sizes(
        attention(qkv_bound=0.6, qkv_bias=True),
        attention(qkv_bound=1.1, norm="head"),
        attention(qkv_bound=0.8, norm="whole"),
        layers=3,
    ),
    "norms before what leads back": sizes(
        LayerSpec(
            attention=AttentionSpec(sub_norm=True),
            feed_forward=FeedForwardSpec(activation="relu2", sub_norm=True),
        ),
        feed_forward(gated=False, bias=True, sub_norm=True),
        attention(sub_norm=True, output_gate=True, window=9),
        layers=3,
    ),
    "layer norms before what leads back": sizes(
        LayerSpec(
            attention=AttentionSpec(sub_norm=True, head_gate=True),
            feed_forward=FeedForwardSpec(sub_norm=True),
            order="sandwich",
        ),
        head_dim=32,
        norm=LAYER_NORM,
    ),
    "a limited feed-forward": sizes(feed_forward(limit=0.7), LayerSpec()),
    "limited experts": sizes(
        feed_forward(limit=0.9, experts=experts(5, 2, limit=0.4, shared_inner=100))
    ),
    "layers of one half": sizes(
        LayerSpec(halves="mixer"), LayerSpec(halves="feed_forward"), layers=2
    ),
    "a floor of the sum of shares": sizes(
        feed_forward(experts=experts(5, 2, router="sigmoid", sum_floor=0.5))
    ),
    "gates limited before they are activated": sizes(feed_forward(gate_limit=0.6), LayerSpec()),
    "experts scored by roots": sizes(
        feed_forward(
            gate_limit=0.8,
            experts=experts(7, 3, router="sqrt_softplus", correction=True, shared_inner=100),
        )
    ),
    "experts that are near the best": sizes(
        feed_forward(
            experts=experts(7, 3, router="sparse_mixer", nearness=0.8, normalised=False),
        )
    ),
    "capped logits": sizes(LayerSpec(), logits_soft_cap=2.0),
}

TYPICAL = ("window of 5", "window of 257, then all", "sinks in a window", "norms on both sides")
TYPICAL += ("parallel, norms over all heads", "ungated", "layer norms with biases")
TYPICAL += ("gated attention", "more query heads with gates")
TYPICAL += (
    "experts",
    "experts with groups and a shared one",
    "experts beside a gated one",
)


def check(model: SlowDecoder, lengths: list[int], threads: int, bound: float) -> None:
    sequences = [random_tokens(model.sizes.vocab, n, n) for n in lengths]
    run = Run(model.packed(num_blocks=64, threads=threads), sequences)
    run.steps(random_steps(lengths, seed=threads, largest=100))
    for which, tokens in enumerate(sequences):
        assert distance(run.of(which), true_logits(model.sizes, tuple(tokens))) < bound


@pytest.mark.parametrize("name", MODELS)
def test_in_float32(name: str) -> None:
    check(SlowDecoder.of(MODELS[name]), [33, 1, 17], 2, 3e-5)


@pytest.mark.parametrize(
    "name", ["window of 16", "window of 257, then all", "chunks of 24", "sinks", "gated attention"]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_over_several_splits(name: str, threads: int) -> None:
    """Alone, so that two threads share the splits of a decode; then in company."""
    model = SlowDecoder.of(dataclasses.replace(MODELS[name], layers=2))
    check(model, [530], threads, 3e-5)
    check(model, [300, 20], threads, 3e-5)


@pytest.mark.parametrize("cache", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", ["window of 5", "window of 16", "soft cap in a window", "sinks"])
def test_in_other_caches(name: str, cache: str) -> None:
    """The bound is for roundings that fall the other way, as in test_decoder."""
    model = SlowDecoder.of(dataclasses.replace(MODELS[name], cache=cache))
    check(model, [60, 21], 2, 0.04)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [MatrixKind.BF16, MatrixKind.S8H])
def test_in_two_parts(name: str, kind: MatrixKind) -> None:
    """With as little room for roundings that fall the other way as there are bits more."""
    model = SlowDecoder.of(dataclasses.replace(MODELS[name], kind=kind, two_parts=True))
    check(model, [33, 1, 17], 2, 3e-3)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


@pytest.mark.parametrize("name", TYPICAL)
@pytest.mark.parametrize(
    ("kind", "two_parts"),
    [(MatrixKind.F32, False), (MatrixKind.S8H, False), (MatrixKind.S8H, True)],
)
def test_any_company_any_chunks(name: str, kind: MatrixKind, two_parts: bool) -> None:
    cache = "bfloat16" if kind is MatrixKind.F32 else "int8"
    model = SlowDecoder.of(
        dataclasses.replace(MODELS[name], kind=kind, cache=cache, two_parts=two_parts)
    )
    lengths = [270, 1, 40, 290]
    sequences = [random_tokens(model.sizes.vocab, n, n) for n in lengths]
    alone = []
    for which, length in enumerate(lengths):
        run = Run(model.packed(num_blocks=20), sequences).steps(chunks(which, length, length))
        alone.append(bits(run.of(which)))
    for seed, (block_size, threads) in enumerate([(16, 2), (48, 1)]):
        decoder = model.packed(num_blocks=48, block_size=block_size, threads=threads)
        run = Run(decoder, sequences, seed).steps(random_steps(lengths, seed, largest=150))
        for which, expected in enumerate(alone):
            assert np.array_equal(bits(run.of(which)), expected), (block_size, which)
    decoder = model.packed(num_blocks=20, threads=2)
    by_one = Run(decoder, sequences).steps([[(0, 255)], *chunks(0, 15, 1)])
    assert np.array_equal(bits(by_one.of(0)), alone[0])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_nobody_wants(name: str, threads: int) -> None:
    """Those that are wanted have the bits that they have among all; keys and values of the others
    are there for later steps."""
    model = SlowDecoder.of(dataclasses.replace(MODELS[name], kind=MatrixKind.S8H, layers=2))
    lengths = [130, 3, 77]
    sequences = [random_tokens(model.sizes.vocab, n, n) for n in lengths]
    choose = random.Random(threads)

    def some(count: int) -> list[int]:
        return choose.sample(range(count), choose.choice([0, 1, count // 3, count - 1]))

    steps = [[(1, 1), (0, 100), (2, 70)], [(0, 20), (1, 2), (2, 2)], *chunks(0, 10, 1), [(2, 5)]]
    runs = []
    for wants in ({}, {"wants": some}):
        decoder = model.packed(num_blocks=24, threads=threads)
        runs.append(Run(decoder, sequences, **wants).steps(steps))
    for which, _ in enumerate(sequences):
        whole, found = (run.of(which) for run in runs)
        wanted = ~np.isnan(found).all(axis=1)
        assert np.array_equal(bits(found[wanted]), bits(whole[wanted])), which


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_behind_the_window_are_not_read(threads: int) -> None:
    """Their places in the table hold ids that no memory has."""
    model = SlowDecoder.of(sizes(attention(window=20)))
    tokens = [random_tokens(model.sizes.vocab, 600, 5)]
    plain = Run(model.packed(num_blocks=40), tokens).steps([[(0, 600)]]).of(0)
    run = Run(model.packed(num_blocks=40, threads=threads), tokens)
    for work in [(0, 300), *[(0, 1)] * 30, (0, 200), (0, 70)]:
        done = len(run.logits[0])
        table = run.tables[0]
        table[: max(0, done - 19) // 16] = [1 << 30] * (max(0, done - 19) // 16)
        run.step([work])
    assert np.array_equal(bits(run.of(0)), bits(plain))
