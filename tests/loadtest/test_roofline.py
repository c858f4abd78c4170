"""The machine's limits and a model's cost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from loadtest.peers.servers import default_model
from loadtest.roofline import probe
from loadtest.roofline.cost import ModelCost, model_cost
from loadtest.roofline.probe import Limits, ProbeUnavailable, limits_of, measure, median
from penstock.formats.gguf import GGUFFile


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_probe_gives_possible_figures() -> None:
    limits = measure(threads=1, buffer_mib=64)
    assert limits.threads == 1
    assert 1e8 < limits.read_bytes_per_s < 1e12
    if limits.int8_ops_per_s is not None:
        # One core: at least a product of 64 bytes each 100 ns; at most AMX's 1,024 at 10 GHz.
        assert 1e9 < limits.int8_ops_per_s < 2048 * 1e10
    if limits.int8_ops_per_s is not None and limits.bf16_ops_per_s is not None:
        assert limits.bf16_ops_per_s < 1.5 * limits.int8_ops_per_s


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_scales_and_minima_cost_less_than_products() -> None:
    """The best of several probes: on a busy machine, one may be of a thread that was put aside."""
    several = [measure(threads=1, buffer_mib=1) for _ in range(5)]
    plain = [each.int8_ops_per_s for each in several if each.int8_ops_per_s is not None]
    blocks = [
        each.block_int8_ops_per_s for each in several if each.block_int8_ops_per_s is not None
    ]
    if not blocks:
        pytest.skip("this processor has no AVX-512 VNNI, or AMX in its place")
    assert max(plain) / 3 < max(blocks) < max(plain)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_int8_is_measured_with_avx2_too() -> None:
    """Processors without AVX-512 and VNNI measure so."""
    if "avx2" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this processor has no AVX2")
    limits = measure(threads=1, buffer_mib=64, processor="haswell")
    assert limits.int8_ops_per_s is not None
    # A product of 32 bytes each 100 ns; at most two a cycle at 10 GHz, were sums for nothing.
    assert 5e8 < limits.int8_ops_per_s < 2 * 64 * 1e10
    assert limits.bf16_ops_per_s is None


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_what_is_not_measured_limits_nothing() -> None:
    limits = measure(threads=1, buffer_mib=64, processor="x86-64")
    assert (limits.int8_ops_per_s, limits.ops_per_s) == (None, None)
    cost = model_cost(default_model())
    assert cost.prefill_seconds(8192, 8, limits) is None
    assert limits_of({"limits": [limits.to_dict()]}) == limits
    # A step of one stream is bound by reading.
    reading = cost.weight_bytes / limits.read_bytes_per_s
    assert cost.decode_seconds(0, 1, limits) == pytest.approx(reading)
    assert cost.prefill_seconds(8192, 8, Limits(1, 1e10, 1e12, None)) == pytest.approx(
        2 * (8192 * cost.layer_macs + 8 * cost.head_macs) / 1e12
    )


def test_more_tokens_read_more_experts() -> None:
    """As many as a router that picks 8 of 32 at random for each token."""
    cost = ModelCost(
        layer_bytes=100 + 800,
        layer_macs=0,
        head_bytes=50,
        head_macs=0,
        kv_bytes=0,
        expert_bytes=3200,
        expert_share=8 / 32,
    )
    rng = random.Random(1)
    for tokens in (1, 2, 8, 64):
        picked = [
            len({expert for _ in range(tokens) for expert in rng.sample(range(32), 8)})
            for _ in range(400)
        ]
        share = sum(picked) / len(picked) / 32
        assert cost.read_bytes(tokens) == pytest.approx(150 + 3200 * share, rel=0.01)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    probe._program.cache_clear()
    with pytest.raises(ProbeUnavailable, match="no C\\+\\+ compiler called no-such-compiler"):
        measure(threads=1)


def test_medians_go_field_by_field() -> None:
    several = [Limits(2, 1.0, 5.0, None), Limits(2, 3.0, 1.0, None), Limits(2, 2.0, 3.0, 7.0)]
    assert median(several) == Limits(2, 2.0, 3.0, 7.0)
    assert median([]) is None


def test_the_default_models_cost_agrees_with_its_file() -> None:
    path = default_model()
    cost = model_cost(path)
    # 30 layers of 576, 9 query and 3 KV heads of 64, 1,536 inside; vocabulary 49,152.
    layer = 576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536
    assert cost.layer_macs == 30 * layer
    assert cost.head_macs == 49_152 * 576
    assert cost.kv_bytes == 30 * 2 * 3 * 64 * 2
    assert cost.layer_bytes == 30 * layer // 32 * 20  # Q4_1
    assert cost.head_bytes == 49_152 * 576 // 32 * 34  # Q8_0
    everything = sum(tensor.data.nbytes for tensor in GGUFFile(Path(path)).tensors.values())
    assert 0 <= everything - cost.weight_bytes < everything // 100  # the norms
