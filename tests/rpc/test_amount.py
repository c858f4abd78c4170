"""What a message holds, counted before it is parsed."""

from __future__ import annotations

import random

import pytest

from penstock.errors import InvalidRequest
from penstock_rpc.calls import SMALL, check_message
from penstock_rpc.protos.inference_pb2 import GenerateRequest, MediaItem, TokenIds
from penstock_rpc.protos.kserve_pb2 import ModelInferRequest

pytestmark = pytest.mark.timeout(120)


async def counted(message: bytes, kind: type = GenerateRequest) -> bool:
    """Whether it is taken."""
    try:
        await check_message(kind.DESCRIPTOR, message)  # type: ignore[attr-defined]
    except InvalidRequest:
        return False
    return True


@pytest.mark.parametrize(
    ("message", "taken"),
    [
        (GenerateRequest(text="a" * 8_000_000), True),
        (GenerateRequest(text="中" * 2_500_000), True),
        (GenerateRequest(text="中" * 3_000_000), False),
        (GenerateRequest(token_ids=TokenIds(ids=[150_000] * 262_144)), True),
        (GenerateRequest(token_ids=TokenIds(ids=[1] * 600_000)), False),
        (GenerateRequest(media=[MediaItem()] * 40_000), True),
        (GenerateRequest(media=[MediaItem()] * 50_000), False),
    ],
    ids=lambda each: "",
)
async def test_values_count(message: GenerateRequest, taken: bool) -> None:
    assert await counted(message.SerializeToString()) is taken


async def test_a_list_may_come_number_by_number() -> None:
    """Clients that pack nothing send so: a list's field is a tag and a value, again and again."""
    ids = b"\x08\x01" * 100_000
    assert await counted(b"\x22" + b"\xc0\x9a\x0c" + ids)
    assert not await counted(b"\x22" + b"\xc0\xb4\x18" + ids * 2)


@pytest.mark.parametrize("seed", range(20))
async def test_noise_is_left_to_the_parser(seed: int) -> None:
    draw = random.Random(seed)
    base = ModelInferRequest(
        model_name="m", raw_input_contents=[draw.randbytes(50)] * 1000
    ).SerializeToString()
    noise = bytearray(base + draw.randbytes(SMALL))
    for _ in range(200):
        noise[draw.randrange(len(noise))] = draw.randrange(256)
    for kind in (GenerateRequest, ModelInferRequest):
        await counted(bytes(noise), kind)
        await counted(draw.randbytes(2 * SMALL), kind)
