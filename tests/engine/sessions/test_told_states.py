"""What many front ends are told again and again: the state only where it has changed, and the
tokenizer only where it isn't there."""

from __future__ import annotations

import math

import msgspec
import pytest

from penstock.protocol.to_frontend import Status, Unchanged, Welcome, text_of
from tests.engine import small_facts
from tests.engine.harness import Harness

PACES = 5


def turns(h: Harness, count: int) -> None:
    """So many times, the core is stepped when something is due."""
    for _ in range(count):
        h.now = math.nextafter(max(h.now, h.core.next_deadline()), math.inf)
        h.settle()


def test_a_state_that_is_the_same_is_told_in_a_word() -> None:
    h = Harness()
    knows, older = h.connect(unchanged=True), h.connect()
    h.start_worker(50)
    turns(h, 3)
    knows.heard.clear()
    older.heard.clear()
    turns(h, PACES)
    assert knows.heard == [Unchanged()] * PACES
    assert older.heard == [older.status] * PACES, "it need not know the word"
    h.kill_worker()
    assert isinstance(knows.heard[-1], Status)
    assert not knows.heard[-1].ready
    assert knows.heard[-1] == older.heard[-1]


def test_what_is_told_is_always_the_state() -> None:
    """However sessions come and things change in between, each front end that is told in words
    knows what one knows that is told all."""
    h = Harness()
    fronts = [h.connect()]
    h.start_worker(50)
    for number in range(8):
        fronts.append(h.connect(unchanged=bool(number % 2)))
        if number % 3 == 0:
            h.submit(fronts[0], [1, 2, number], max_tokens=1)
            h.run()
        turns(h, number % 3)
    turns(h, 1)
    assert len({msgspec.msgpack.encode(front.status) for front in fronts}) == 1
    assert fronts[0].status is not None
    assert fronts[0].status.frontends == len(fronts)


def test_a_front_end_that_comes_costs_the_others_no_message() -> None:
    """A thousand that come back after a restart were told a million states."""
    h = Harness()
    first = h.connect(unchanged=True)
    heard = len(first.heard)
    for _ in range(20):
        assert [type(each) for each in h.connect(unchanged=True).heard] == [Status]
    assert len(first.heard) == heard


def test_a_state_is_told_before_a_beat_is_due() -> None:
    h = Harness()
    front = h.connect(unchanged=True)
    interval = h.facts.config.transport.beat_interval
    for _ in range(PACES):
        since, heard = h.now, len(front.heard)
        turns(h, 1)
        assert len(front.heard) == heard + 1
        assert h.now - since < interval


@pytest.mark.parametrize("part", [0, 1, 2, None])
def test_the_tokenizer_is_brought_where_it_is_not_there(part: int | None) -> None:
    """part: of what names it, which differs."""
    facts = small_facts.facts()
    contents = {**facts.model.contents, "tokenizer.json": "5" * 64}
    model = msgspec.structs.replace(facts.model, contents=contents)
    h = Harness(msgspec.structs.replace(facts, model=model, template=b"{{ messages }}"))
    older = h.connect()
    both = (h.facts.tokenizer, h.facts.template)
    assert older.frames == both
    assert isinstance(older.welcome, Welcome)
    names = text_of(older.welcome)
    assert names is not None
    held = tuple("another" if place == part else name for place, name in enumerate(names))
    assert h.connect(text=held).frames == (() if part is None else both)


def test_an_engine_core_that_does_not_name_its_tokenizer_brings_it() -> None:
    h = Harness()
    first = h.connect()
    assert first.welcome is not None
    assert text_of(first.welcome) is None
    assert first.frames
    assert h.connect(text=(first.welcome.digest, "", "")).frames
