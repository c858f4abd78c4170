"""What an engine core hears of a request whose tokens nobody reads as they come."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import RequestOutputKind, SamplingParams
from penstock.client.best_of import best_of
from penstock.protocol.from_frontend import Submit
from tests.shared.client.client_requests import collect

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]


@pytest.mark.parametrize(
    ("params", "read_at_end", "gathered"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"output_kind": RequestOutputKind.FINAL_ONLY}, False, True),
        # Somebody looks for them in the text, token by token.
        ({"stop": "END"}, True, False),
        ({"stop": "END", "output_kind": RequestOutputKind.FINAL_ONLY}, False, False),
    ],
)
async def test_its_tokens_may_come_several_at_a_time(
    engine: Any, client: Any, params: dict[str, Any], read_at_end: bool, gathered: bool
) -> None:
    generation = await client.submit(
        list(b"x"), SamplingParams(**params), name="r", read_at_end=read_at_end
    )
    [submit] = engine.submits
    assert submit.gathered is gathered
    engine.text(submit, "ab", finish="length")
    assert (await collect(generation))[0][0] == "ab"


async def test_so_may_those_of_which_the_best_are_chosen(engine: Any, client: Any) -> None:
    def script(submit: Submit) -> None:
        for index in range(2):
            engine.text(submit, "ab", sequence=index, finish="length")

    engine.script = script
    params = SamplingParams(max_tokens=2)
    found = await best_of(client, list(b"x"), params, best_of=2, name="b")
    [submit] = engine.submits
    assert submit.gathered
    assert [each.text for each in found.chosen] == ["ab"]
