"""A step on a device that isn't here, against the arithmetic of its data sheet done by hand."""

from __future__ import annotations

import re

import pytest

from penstock.errors import InvalidRequest
from penstock.recommend.cards import DEVICES, Accelerator, parse_device
from penstock_planning.plan.estimate import ModelSize, estimated_cost, kv_blocks

EIGHT = ModelSize(
    name="eight",
    parameters=8.03e9,
    weight_bytes=16.06e9,
    kv_bytes=2 * 32 * 8 * 128 * 2,
    pair_operations=4 * 32 * 32 * 128,
)
"""Of the shape of Llama 3.1 8B, in bfloat16."""


def test_a_lone_decode_is_limited_by_reading_the_weights() -> None:
    seconds = estimated_cost(DEVICES["h100"], EIGHT).seconds(1, 1, 1000, reads=1000)
    assert seconds == pytest.approx(0.002 + 16.06e9 / (0.8 * 3.35e12), rel=0.02)


def test_a_long_prompt_is_limited_by_arithmetic() -> None:
    tokens = 8192
    pairs = tokens * (tokens + 1) // 2
    seconds = estimated_cost(DEVICES["h100"], EIGHT).seconds(tokens, 1, pairs, reads=tokens)
    operations = 2 * 8.03e9 * tokens + 4 * 32 * 32 * 128 * pairs
    assert seconds == pytest.approx(0.002 + operations / (0.5 * 989e12), rel=0.01)


def test_many_decodes_read_the_weights_once_and_each_its_kv() -> None:
    cost = estimated_cost(DEVICES["h100"], EIGHT)
    one = cost.seconds(1, 1, 0)
    many = cost.seconds(64, 64, 0, reads=64 * 2000)
    assert many - one == pytest.approx(64 * 2000 * 131_072 / (0.8 * 3.35e12))


def test_kv_has_what_the_weights_leave() -> None:
    blocks = kv_blocks(DEVICES["h100"], EIGHT, 16)
    assert blocks * 16 * 131_072 == pytest.approx(0.9 * 80e9 - 16.06e9, rel=0.001)
    with pytest.raises(InvalidRequest, match="leave no room"):
        kv_blocks(DEVICES["l4"], EIGHT.__class__(**{**_fields(EIGHT), "weight_bytes": 3e10}), 16)


def _fields(model: ModelSize) -> dict[str, object]:
    return {name: getattr(model, name) for name in model.__struct_fields__}


def test_a_device_is_a_name_or_figures() -> None:
    assert parse_device("h100") == ("h100", DEVICES["h100"])
    figures = Accelerator(bandwidth=100, tflops=5, memory=16, overhead=1)
    assert parse_device("bandwidth=100, tflops=5,memory=16,overhead=1")[1] == figures


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h9000",
        "bandwidth=1",
        "bandwidth=1,tflops=2,memory=0",
        "bandwidth=nan,tflops=1,memory=1",
        "bandwidth=1,tflops=2,memory=3,price=4",
        "bandwidth=x,tflops=1,memory=1",
    ],
)
def test_another_device_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(
        InvalidRequest, match=re.escape("it takes 3060, 4090, 5080, a100, h100")
    ) as raised:
        parse_device(text)
    assert raised.value.param == "device"
