"""Rotary tables are what their definitions say in float64, and keep their bits."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from penstock.model.rope_spec import RopeScaling, RopeSpec
from penstock_worker.layers.rotary_tables import (
    AngleTables,
    frequencies_of,
    llama3_scaled,
    rotary_tables,
)


def tables(spec: RopeSpec, positions: int) -> AngleTables:
    def none(count: int) -> np.ndarray:
        raise AssertionError("nothing of the checkpoint is asked for")

    return rotary_tables(spec, positions, none)


@pytest.mark.parametrize(("dims", "theta"), [(64, 1e4), (128, 5e5), (256, 1e6), (96, 1e7)])
def test_cosines_and_sines_are_those_of_the_angles_rounded_once(dims: int, theta: float) -> None:
    positions = 9000
    found = tables(RopeSpec(dims=dims, theta=theta), positions)
    true = [theta ** -(2 * pair / dims) for pair in range(dims // 2)]
    assert np.allclose(frequencies_of(dims, theta), true, rtol=3e-7)
    for at in (0, 1, 4095, 4096, 8999):
        angles = [float(np.float32(at) * each) for each in frequencies_of(dims, theta)]
        assert found.cos[at].tolist() == [float(np.float32(math.cos(each))) for each in angles]
        assert found.sin[at].tolist() == [float(np.float32(math.sin(each))) for each in angles]


def test_their_bits_are_those_of_every_machine() -> None:
    """Measured with AVX-512, with AVX2 alone and with neither."""
    found = tables(RopeSpec(dims=128, theta=1e6), 5000)
    assert zlib.crc32(found.cos.tobytes()) == 287870124
    assert zlib.crc32(found.sin.tobytes()) == 2002213840


def test_a_position_has_the_same_angles_however_long_the_table_is() -> None:
    short, long = (tables(RopeSpec(dims=64), count) for count in (300, 11_000))
    assert np.array_equal(short.cos, long.cos[:300])
    assert np.array_equal(short.sin, long.sin[:300])


def test_llama3_scaling_keeps_blends_and_divides() -> None:
    wavelengths = np.array([100.0, 2048.0, 4096.0, 8192.0, 100_000.0], dtype=np.float32)
    plain = np.float32(2 * math.pi) / wavelengths
    scaling = RopeScaling(kind="llama3", factor=8.0)
    # At 4096 the blend is (2 - 1) / (4 - 1): a third kept, two thirds divided by 8.
    wanted = [1.0, 1.0, 1 / (1 / 3 + 2 / 24), 8.0, 8.0]
    assert np.allclose(plain / llama3_scaled(plain, scaling), wanted)


SCALINGS = {
    "linear": (RopeScaling(kind="linear", factor=4.0), {"factor": 4.0}),
    "llama3": (
        RopeScaling(kind="llama3", factor=8.0),
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "yarn": (
        RopeScaling(kind="yarn", factor=4.0, original_max_position=4096),
        {"factor": 4.0, "original_max_position_embeddings": 4096, "attention_factor": 1.0},
    ),
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_frequencies_are_transformers(kind: str) -> None:
    scaling, said = SCALINGS[kind]
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        head_dim=64,
        max_position_embeddings=16_384,
        rope_parameters={"rope_type": kind, "rope_theta": 5e5, **said},
    )
    true, _ = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    found = tables(RopeSpec(dims=64, theta=5e5, scaling=scaling), 3)
    assert np.allclose(found.sin[1], np.sin(true.double().numpy()), rtol=1e-5)


def test_queries_grow_with_their_position() -> None:
    spec = RopeSpec(dims=16, query_growth=0.1, query_growth_length=100, query_growth_first=1)
    found = tables(spec, 1000).query_factors
    assert found is not None
    wanted = [1 + 0.1 * math.log(1 + (at + 1) // 100) for at in range(1000)]
    assert np.allclose(found, wanted, rtol=1e-6)
