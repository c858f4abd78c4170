"""Agents' loops through each API: each turn finds all that the one before had, up to a KV block,
and what the template shows again of an answer is what the model wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.system.agents.agent import Turn, Work, turns_of
from tests.system.agents.apis import APIS, Chat, ChatWithoutThoughts, Conversation
from tests.system.agents.system import Scripted, serving
from tests.system.agents.writing import OF_RELEASES, OURS, Writing, releases

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


@pytest.mark.skipif(releases() is None, reason="PENSTOCK_RELEASES names no releases' templates")
@pytest.mark.parametrize("writing", OF_RELEASES, ids=lambda writing: writing.name)
def test_templates_of_releases_keep_what_was_computed(writing: Writing) -> None:
    """While the agent works on one task: a template may show a little of an answer otherwise."""
    with serving(writing) as running:
        turns = asyncio.run(turns_of(running, writing, Chat, SMALL, 1))
    assert all_found(turns), turns
    assert all(turn.cached >= 0.95 * turn.before for turn in turns[1:]), turns
