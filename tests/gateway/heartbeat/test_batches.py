"""Whatever a batch's file is full of, the event loop of the process that works through it stands
still for no more than 50 ms."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.batches.request import BatchLine
from tests import thinning
from tests.gateway.batches.storing import URL, Storing, line, storing
from tests.gateway.heartbeat.beaten import ATTEMPTS
from tests.gateway.heartbeat.beating import Heartbeat, collecting_as_a_gateway, latest
from tests.gateway.heartbeat.bodies import FILLS, LONG, cases_of
from tests.gateway.heartbeat.engines import GeneratingEngine

pytestmark = pytest.mark.timeout(1200)

CASES = 1
"""Without --long."""
ALWAYS = ("many lines", "body.x of lists in lists")

EXAMPLE = json.loads(line("a"))
IN_BODIES = ("letters", "escapes", "lists in lists", "texts", "keys", "digits", "numbers")


def _in_body(field: str, fill: str, size: int) -> bytes:
    whole = json.dumps({**EXAMPLE, "body": {**EXAMPLE["body"], field: "@@"}}).encode()
    before, after = whole.split(b'"@@"')
    return before + FILLS[fill][1](size - len(before) - len(after)) + after


def _many(text: bytes, size: int) -> bytes:
    return text * (size // len(text))


def _many_lines(count: int, size: int) -> bytes:
    return b"".join(line(str(number)) for number in range(count))


FILES: dict[str, Callable[[int], bytes]] = {
    **{
        f"body.{field} of {fill}": partial(_in_body, field, fill)
        for field in ("x", "prompt", "stream")
        for fill in IN_BODIES
    },
    **{f"{case.field} of {case.fill}": case.body for case in cases_of(BatchLine, EXAMPLE)},
    "many lines": partial(_many_lines, 300),
    "the same line": partial(_many, line("a")),
    "empty lines": partial(_many, b"\n"),
    "lines of spaces": partial(_many, b" " * 100 + b"\n"),
    "spaces": partial(_many, b" "),
    "lines that are no JSON": partial(_many, b"x\n"),
    "no characters": partial(_many, b"\xff"),
}
"""Files by what they are full of, made for a size in bytes."""


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[Storing]:
    with collecting_as_a_gateway():
        async with storing(
            tmp_path, GeneratingEngine(), config=GatewayConfig(), max_stored_files=10_000
        ) as found:
            yield found


async def test_a_file_full_of_anything(stored: Storing) -> None:
    names = sorted(FILES, key=lambda name: list(FILES).index(name) * thinning.GOLDEN % 1)
    heart = Heartbeat()
    await heart.begin()
    late = []
    async with stored.running(longest_line=LONG):
        for name in names if thinning.every else (*ALWAYS, *names[:CASES]):
            content = FILES[name](LONG)
            least, limit, status = float("inf"), latest(), ""
            for _ in range(ATTEMPTS):
                file = await stored.upload(content)
                assert file.status_code == 200, file.text
                await heart.settle()
                heart.late = 0.0
                body = {"input_file_id": file.json()["id"], "endpoint": URL}
                made = await stored.http.post("/v1/batches", json=body)
                status = (await stored.ended(made.json()["id"]))["status"]
                await heart.settle()
                least = min(least, heart.late)
                if least <= limit:
                    break
            if least > limit:
                late.append(f"{name}, {len(content)} bytes, {status}: {1000 * least:.0f} ms late")
    await heart.end()
    assert not late, "\n".join(late)
