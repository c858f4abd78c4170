"""Adapters: who waits for which, who makes way, and what a death costs."""

from __future__ import annotations

import pytest

from penstock.protocol.common import AdapterFile, NamedAdapter
from penstock.protocol.from_frontend import NameAdapters
from penstock.protocol.from_worker import AdapterFailed, AdapterReady
from penstock_engine.kv.keys import prefix_root
from penstock_engine.request.states import SequenceState
from penstock_engine.waiting import adapters
from penstock_engine.waiting.adapter_entry import AdapterNames
from tests.engine.fake_adapters import adapter
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore

PROMPT = [1, 2, 3, 4, 5]


def started(**options: object) -> tuple[Harness, Front]:
    h = Harness(**{"max_loras": 2, **options})
    front = h.connect()
    h.start_worker()
    return h, front


def loaded(h: Harness) -> set[str]:
    assert h.worker is not None
    return h.worker.adapters.loaded


def digests(*numbers: int) -> set[str]:
    return {adapter(number).digest for number in numbers}


def ask(h: Harness, front: Front, number: int, **more: object) -> RequestScore:
    return h.submit(front, PROMPT, adapter=adapter(number), ignore_eos=True, **more)


def ends(request: RequestScore) -> list[str | None]:
    return [
        None if score.terminal is None else score.terminal.finish
        for score in request.sequences.values()
    ]


def test_a_sequence_waits_for_its_adapter_and_others_go_on() -> None:
    h, front = started()
    h.adapters_at_once = False
    waits, runs = ask(h, front, 1), h.submit(front, PROMPT, ignore_eos=True)
    state = h.core.state.frontends.requests()
    assert [s.state for r in state for s in r.sequences.values()] == [
        SequenceState.WAITING_FOR_ADAPTER,
        SequenceState.RUNNING,
    ]
    assert front.status is not None
    for _ in range(20):
        h.run_step()
    assert ends(runs) == ["length"]
    assert ends(waits) == [None]
    assert h.load_adapter()
    h.run()
    assert ends(waits) == ["length"]


def test_what_is_computed_with_an_adapter_is_found_with_that_adapter_only() -> None:
    h, front = started()
    for number in (1, 1, 2):
        ask(h, front, number, max_tokens=4)
        h.run()
    again, other = list(front.requests.values())[1:]
    assert (again.cached, other.cached) == (4, 0)
    plain = h.submit(front, PROMPT)
    h.run()
    assert plain.cached == 0
    assert prefix_root("t", "s", adapter(1)) == prefix_root("t", "s", AdapterFile(*_moved(1)))
    assert prefix_root("t", "s", adapter(1)) != prefix_root("t", "s", adapter(2))


def test_adapters_are_of_one_tenant_and_salt() -> None:
    """What is computed with an adapter is found by those alone who would find it without one."""
    roots = {
        prefix_root(tenant, salt, adapter(1))
        for tenant in ("a", "b", "")
        for salt in ("a", "b", "")
    }
    assert len(roots) == 9
    h, front = started()
    for tenant, salt, expected in (("a", "", 0), ("b", "", 0), ("", "a", 0), ("a", "", 4)):
        ask(h, front, 1, max_tokens=4, tenant=tenant, salt=salt)
        h.run()
        assert [*front.requests.values()][-1].cached == expected


def _moved(number: int) -> tuple[str, str]:
    """An adapter of the same contents at another place."""
    return adapter(number).digest, "/elsewhere"


def test_the_adapter_that_was_unused_longest_makes_way() -> None:
    h, front = started()
    for number in (1, 2, 1, 3):
        ask(h, front, number)
        h.run()
    assert loaded(h) == digests(1, 3)


def test_one_adapter_is_loaded_once_for_many() -> None:
    h, front = started()
    requests = [ask(h, front, 1) for _ in range(6)]
    h.run()
    assert all(ends(request) == ["length"] for request in requests)
    assert h.worker is not None
    assert h.worker.adapters.num_loads == 1


def test_no_adapter_waits_for_more_than_a_bounded_number_of_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapters, "MAX_STARTS", 5)
    h, front = started(max_num_seqs=3, max_waiting_requests=100)
    # There is always more to do with what is loaded than there are slots.
    for number in (1, 2, 1, 2, 1, 2):
        ask(h, front, number, max_tokens=9)
    starved = ask(h, front, 3, max_tokens=2)
    later: list[RequestScore] = []
    for turn in range(400):
        if ends(starved) != [None]:
            break
        later += [ask(h, front, 1 + turn % 2, max_tokens=9)] if turn % 2 else []
        h.run_step()
    assert ends(starved) == ["length"]
    begun = sum(bool(request.sequences[0].tokens) for request in later)
    assert begun <= 5 + 3 + 6, "too many have overtaken it"
    h.run()
    assert all(ends(request) == ["length"] for request in later)


def test_a_worker_that_comes_back_gets_the_same_adapters() -> None:
    h, front = started()
    requests = [ask(h, front, 1, max_tokens=20), ask(h, front, 2, max_tokens=20)]
    for _ in range(6):
        h.run_step()
    assert all(request.sequences[0].tokens for request in requests)
    h.kill_worker()
    h.start_worker()
    assert h.worker is not None
    assert {*h.worker.adapters.loading, *loaded(h)} == digests(1, 2)
    h.run()
    assert [ends(request) for request in requests] == [["length"], ["length"]]


def test_an_adapter_that_kills_workers_is_not_loaded_again_and_harms_nobody_else() -> None:
    h, front = started()
    h.adapters_at_once = False
    deadly, innocent = ask(h, front, 1), ask(h, front, 2)
    for _ in range(2):
        assert h.worker is not None
        if adapter(1).digest not in h.worker.adapters.loading:
            h.load_adapter()
        h.kill_worker()
        h.start_worker()
        # Suspects are loaded one by one.
        assert h.worker is not None
        assert len(h.worker.adapters.loading) <= 1
    h.adapters_at_once = True
    h.run()
    assert deadly.sequences[0].terminal is not None
    assert deadly.sequences[0].terminal.error_code == "invalid_adapter"
    assert "died" in (deadly.sequences[0].terminal.error or "")
    assert ends(innocent) == ["length"]
    refused = ask(h, front, 1)
    assert refused.rejected is not None
    assert refused.rejected.code == "invalid"


def test_an_adapter_that_cant_be_loaded_ends_those_who_ask_for_it_and_nobody_else() -> None:
    h, front = started()
    h.bad_adapters.add(adapter(1).digest)
    bad = [ask(h, front, 1, n=2), ask(h, front, 1)]
    good = ask(h, front, 2)
    h.run()
    for request in bad:
        for score in request.sequences.values():
            assert score.terminal is not None
            assert score.terminal.error_code == "invalid_adapter"
            assert "it is bad" in (score.terminal.error or "")
    assert ends(good) == ["length"]
    assert loaded(h) == digests(2)


def test_one_whose_contents_do_not_fit_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "MAX_REFUSED", 2)
    h, front = started()
    h.adapters_at_once = False
    assert h.worker is not None
    for number in (1, 2, 3):
        unfit = ask(h, front, number)
        digest, _ = h.worker.adapters.loading.popitem()
        h.worker.adapters.loaded.add(digest)
        h.worker_says(AdapterFailed(digest, "it has rank 99", unfit=True))
        h.settle()
        assert unfit.sequences[0].terminal is not None
        assert unfit.sequences[0].terminal.error_code == "invalid_adapter"
    before = h.worker.adapters.num_loads
    for number in (2, 3):
        refused = ask(h, front, number).rejected
        assert refused is not None
        assert (refused.code, refused.error_code) == ("invalid", "invalid_adapter")
        assert "it has rank 99" in refused.message
    assert h.worker.adapters.num_loads == before
    assert ask(h, front, 1).rejected is None, "of many, the first is forgotten"


def test_an_adapter_that_takes_too_long_is_given_up_and_its_late_answer_means_nothing() -> None:
    h, front = started()
    h.adapters_at_once = False
    slow = ask(h, front, 1)
    assert h.worker is not None
    late = AdapterReady(adapter(1).digest)
    h.worker.adapters.loaded.add(h.worker.adapters.loading.popitem()[0])
    h.now += adapters.LOAD_TIMEOUT
    h.settle()
    assert slow.sequences[0].terminal is not None
    assert "within" in (slow.sequences[0].terminal.error or "")
    again = ask(h, front, 1)
    h.worker_says(late)
    h.run_step()
    assert not again.sequences[0].tokens
    h.load_adapter()
    h.run()
    assert ends(again) == ["length"]


def test_adapters_behind_others_have_their_own_time() -> None:
    h, front = started()
    h.adapters_at_once = False
    first, second = ask(h, front, 1), ask(h, front, 2)
    h.now += 0.9 * adapters.LOAD_TIMEOUT
    h.load_adapter(adapter(1).digest)
    h.now += 0.9 * adapters.LOAD_TIMEOUT
    h.settle()
    assert ends(second) == [None]
    assert h.worker is not None
    h.worker.adapters.loaded.add(h.worker.adapters.loading.popitem()[0])
    h.now += 0.2 * adapters.LOAD_TIMEOUT
    h.settle()
    assert ends(second) != [None]
    h.run()
    assert ends(first) == ["length"]


def test_without_lora_an_adapter_is_refused() -> None:
    h, front = started(max_loras=0)
    refused = ask(h, front, 1)
    assert refused.rejected is not None
    assert "--enable-lora" in refused.rejected.message


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        (AdapterFile("abc", "/a"), "64 hexadecimal digits"),
        (AdapterFile("g" * 64, "/a"), "64 hexadecimal digits"),
        (AdapterFile("a" * 64, "a/b"), "absolute"),
        (AdapterFile("a" * 64, "/" + "a" * 5000), "4096"),
    ],
)
def test_what_cant_be_an_adapter_is_refused(file: AdapterFile, wrong: str) -> None:
    h, front = started()
    refused = h.submit(front, PROMPT, adapter=file)
    assert refused.rejected is not None
    assert wrong in refused.rejected.message


# ---- names


def named(name: str, number: int | None, stamp: int) -> NamedAdapter:
    return NamedAdapter(name, None if number is None else adapter(number), stamp, 8)


def test_every_front_end_learns_what_one_has_said() -> None:
    h, front = started()
    h.send(front, NameAdapters([named("sql", 1, 5)]))
    assert front.adapters == {"sql": named("sql", 1, 5)}
    other = h.connect()
    assert other.adapters == front.adapters
    h.send(other, NameAdapters([named("sql", 2, 4), named("law", 2, 9)]))
    assert front.adapters == {"sql": named("sql", 1, 5), "law": named("law", 2, 9)}
    h.send(other, NameAdapters([named("sql", None, 6)]))
    assert front.adapters["sql"].file is None


def test_an_adapter_without_a_name_gives_up_its_place_once_nobody_uses_it() -> None:
    h, front = started()
    h.send(front, NameAdapters([named("sql", 1, 5)]))
    runs = ask(h, front, 1, max_tokens=20)
    h.run_step()
    h.send(front, NameAdapters([named("sql", 2, 6)]))
    h.run()
    assert ends(runs) == ["length"], "a stream ends with the adapter that it began with"
    assert loaded(h) == digests(1)
    h.send(front, NameAdapters([named("law", 1, 7)]))
    h.send(front, NameAdapters([named("law", None, 8)]))
    assert loaded(h) == set()


def test_front_ends_that_send_nonsense_about_adapters_lose_their_session() -> None:
    h, front = started()
    h.send(front, NameAdapters([NamedAdapter("", adapter(1), 1)]))
    assert front.ended is not None
    assert "name" in front.ended


def test_names_have_a_bound_and_those_unloaded_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    names = AdapterNames([named("first", None, 1), named("second", 2, 1)])
    monkeypatch.setattr("penstock_engine.waiting.adapter_entry.MAX_ADAPTER_NAMES", 2)
    assert names.learn([named("third", 3, 2)]) == [named("third", 3, 2)]
    assert [each.name for each in names.all()] == ["second", "third"]
    assert names.learn([named("fourth", 4, 3)]) == []


def test_workers_are_told_where_an_adapter_is() -> None:
    h, front = started()
    h.adapters_at_once = False
    ask(h, front, 1)
    assert h.setup is not None
    assert (h.setup.max_loras, h.setup.max_lora_rank) == (2, 16)
    assert h.worker is not None
    assert h.worker.adapters.loading == {adapter(1).digest: adapter(1).path}
