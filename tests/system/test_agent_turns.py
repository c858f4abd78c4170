"""Agents' loops through each API: each turn finds all that the one before had, up to a KV block,
and what the template shows again of an answer is what the model wrote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from loadtest.agent_turns.__main__ import COMMAND
from loadtest.agent_turns.agent import Turn, Work, turns_of
from loadtest.agent_turns.apis import APIS, ChatWithoutThoughts, Conversation
from loadtest.agent_turns.system import Scripted, serving
from loadtest.agent_turns.writing import OURS

pytestmark = [pytest.mark.timeout(240)]

BLOCK = 16
SMALL = Work(turns=5, least=100, most=300, pair=2, system=200)
ASKING = Work(turns=5, task=2, least=100, most=300, system=200)


@pytest.fixture(scope="module")
def system() -> Iterator[Scripted]:
    with serving(OURS) as running:
        yield running


def all_found(turns: list[Turn]) -> bool:
    """The last token of an answer is in no cache: nothing was computed behind it."""
    return all(turn.cached >= (turn.shared - 1) // BLOCK * BLOCK for turn in turns[1:])


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)
def test_each_turn_finds_what_the_one_before_had(system: Scripted, api: type[Conversation]) -> None:
    number = 10 + APIS.index(api)
    turns = asyncio.run(turns_of(system, OURS, api, SMALL, number))
    assert all_found(turns), turns
    if api is ChatWithoutThoughts:
        # The answer is another without its thoughts; all before it is found.
        assert all(one.prompt <= other.shared + 3 for one, other in pairwise(turns))
    else:
        assert [turn.where for turn in turns if turn.shared < turn.before] == []


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)
def test_what_a_template_keeps_is_found_where_the_user_goes_on(
    system: Scripted, api: type[Conversation]
) -> None:
    turns = asyncio.run(turns_of(system, OURS, api, ASKING, 20 + APIS.index(api)))
    assert all_found(turns), turns
    # Thoughts before the user's message are gone, and with them what was behind the first.
    first, _, over, *_ = turns
    lost = first.prompt if api is not ChatWithoutThoughts else turns[1].prompt
    assert abs(over.shared - lost) <= 3


@pytest.mark.long
def test_the_measurement_writes_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_RELEASES", raising=False)
    assert COMMAND.main(["--turns", "2", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "agent_turns.json").read_text())["rows"]
    assert {row["api"] for row in rows} == {api.name for api in APIS}
    assert all(row["worst"] >= 0.95 for row in rows if row["asks"] == "once")
