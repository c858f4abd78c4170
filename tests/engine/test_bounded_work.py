"""What one request may cost in a turn, whatever it asks for."""

from __future__ import annotations

import gc

import msgspec
import pytest

from penstock.config.settings import LimitSettings
from penstock.errors import StartupError
from penstock.protocol.common import Grammar
from penstock_engine.request import step_builder
from penstock_engine.request.request import Request
from penstock_engine.scheduler.prefix_reuse import PrefixReuse
from tests.engine.fake_disk import FakeDisk
from tests.engine.harness import Harness
from tests.engine.sessions.test_sessions import end_of
from tests.engine.small_facts import facts
from tests.engine.walked_harness import POLICIES

ENDLESS = {"ignore_eos": True, "max_tokens": 6}


def carried(h: Harness) -> list[int]:
    """Tokens of all sequences that started in a plan, by plan."""
    assert h.worker is not None
    return [sum(len(new.tokens) for new in plan.admitted) for plan in h.worker.log]


def test_siblings_of_a_long_prompt_start_over_several_steps() -> None:
    h = Harness(
        max_num_seqs=64, max_num_batched_tokens=64, max_model_len=256, max_carried_tokens=600
    )
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1, 2, 3, 4] * 50, n=32, **ENDLESS)
    h.run()
    assert [end_of(request, index).finish for index in range(32)] == ["length"] * 32
    assert max(carried(h)) <= 600
    assert sum(1 for tokens in carried(h) if tokens) > 10


def test_one_that_is_larger_than_the_bound_starts_alone() -> None:
    h = Harness(max_num_batched_tokens=256, max_model_len=256, max_carried_tokens=50)
    front = h.connect()
    h.start_worker()
    requests = [h.submit(front, [at] * 100, **ENDLESS) for at in (1, 2, 3)]
    h.run()
    assert [end_of(request).finish for request in requests] == ["length"] * 3
    assert [tokens for tokens in carried(h) if tokens] == [100, 100, 100]


def test_a_prompt_and_its_sampling_travel_once_and_a_plan_stays_small() -> None:
    """What the issue of 127 MiB was: 128 sequences, each with all bad words."""
    h = Harness(max_num_seqs=128, max_num_batched_tokens=512, max_model_len=512, num_kv_blocks=None)
    sizes: list[int] = []
    original = h._worker_gets

    def weigh(message: object) -> None:
        sizes.append(len(msgspec.msgpack.encode(message)))
        original(message)

    h._worker_gets = weigh  # type: ignore[method-assign]
    front = h.connect()
    h.start_worker(10_000)
    words = tuple((at % 40, *([3] * 30)) for at in range(500))
    from penstock.protocol.common import LogitsAdjustments

    request = h.submit(
        front,
        [1, 2, 3, 4, 5] * 80,
        n=128,
        sampling={"adjustments": LogitsAdjustments(bad_words=words)},
        **ENDLESS,
    )
    h.run()
    assert end_of(request, 127).finish == "length"
    once = len(msgspec.msgpack.encode(request.submit))
    assert max(sizes) < once + 128 * 600
    assert sum(size > once / 2 for size in sizes) == 1, "bad words travel once"


def test_ids_of_parameters_count_as_carried() -> None:
    from penstock.protocol.common import LogitsAdjustments

    h = Harness(max_num_seqs=8, max_num_batched_tokens=64, max_carried_tokens=100)
    front = h.connect()
    allowed = LogitsAdjustments(allowed=tuple(range(40)))
    for at in range(4):
        h.submit(front, [at + 1] * 5, sampling={"adjustments": allowed}, settle=False, **ENDLESS)
    h.start_worker()
    h.run_step()
    assert h.worker is not None
    assert [len(plan.admitted) for plan in h.worker.log] == [2]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"n": 4}, "4 sequences of 10 prompt tokens and up to 6 more may reach 64 tokens"),
        ({"n": 1}, None),
        ({"n": 3}, None),
        ({"n": 2, "max_tokens": 60}, "--max-request-tokens"),
    ],
)
def test_tokens_of_a_request_have_a_bound(options: dict[str, int], complaint: str | None) -> None:
    h = Harness(facts(limits=LimitSettings(max_request_tokens=50)))
    request = h.submit(h.connect(), [1] * 10, **{**ENDLESS, **options})
    if complaint is None:
        assert request.accepted
    else:
        assert request.rejected is not None
        assert request.rejected.code == "invalid"
        assert complaint in request.rejected.message


@pytest.mark.parametrize("name", ["bias", "allowed", "bad_words"])
def test_ids_of_a_request_have_bounds(name: str) -> None:
    from penstock.protocol.common import LogitsAdjustments

    limits = LimitSettings(max_logit_bias=2, max_allowed_token_ids=2, max_bad_words_tokens=2)
    h = Harness(facts(limits=limits))
    front = h.connect()
    values: dict[str, list[object]] = {
        "bias": [{1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0, 3: 1.0}],
        "allowed": [(1, 2), (1, 2, 3)],
        "bad_words": [((1, 2),), ((1, 2), (3,))],
    }
    fits, exceeds = (
        h.submit(front, [1], sampling={"adjustments": LogitsAdjustments(**{name: value})})
        for value in values[name]
    )
    assert fits.accepted
    assert exceeds.rejected is not None
    assert "allowed" in exceeds.rejected.message


def test_bounds_that_no_message_could_carry_are_refused_at_the_start() -> None:
    with pytest.raises(StartupError, match="max_message_bytes is 67108864"):
        facts(limits=LimitSettings(max_request_tokens=20_000_000))


def test_block_numbers_of_all_groups_count_in_a_message() -> None:
    """A step that carries 8 million ids of tokens fits with large blocks, and not with blocks of a
    token each, which are as many more numbers."""
    sizes = {"max_carried_tokens": 8_000_000, "max_num_batched_tokens": 8}
    facts(block_size=64, **sizes)
    with pytest.raises(StartupError, match=r"in 8000\d{3} KV blocks"):
        facts(block_size=1, **sizes)


def test_an_aborted_request_leaves_nothing_behind_until_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness()
    front = h.connect()
    mine = "aborted, and to be forgotten"
    monkeypatch.setattr(Harness, "name_of", lambda self: mine)
    requests = [h.submit(front, [1] * 20, time_left_ms=3_600_000) for _ in range(400)]
    for request in requests:
        h.abort(front, request)
    gc.collect()
    alive = [found for found in gc.get_objects() if type(found) is Request and found.name == mine]
    assert len(alive) < 70, "a few stay in the heap of those that wait; none for its deadline"
    assert h.core.next_deadline() < h.now + 10


def test_who_has_ended_is_gone_at_once_without_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt of 130,000 tokens is a megabyte, and some thousand requests fit between two looks of
    the collector."""
    h = Harness()
    front = h.connect()
    h.start_worker()
    mine = "ended, and to be forgotten"
    monkeypatch.setattr(Harness, "name_of", lambda self: mine)
    gc.collect()
    gc.disable()
    try:
        done = h.submit(front, [1, 2, 3], n=2, **ENDLESS)
        h.run()
        h.abort(front, h.submit(front, [4, 5, 6]))
        h.settle()
        assert end_of(done, 1).finish == "length"
        found = [each for each in gc.get_objects() if type(each) is Request and each.name == mine]
        assert len(found) <= 1, "the newest may still be in the heap of those that wait"
    finally:
        gc.enable()


def test_a_deadline_still_ends_what_others_were_aborted_around() -> None:
    h = Harness()
    front = h.connect()
    first = h.submit(front, [1], time_left_ms=1000)
    for _ in range(1500):
        h.abort(front, h.submit(front, [2], time_left_ms=2000, settle=False))
    last = h.submit(front, [3], time_left_ms=3000)
    h.now += 1.5
    h.settle()
    assert end_of(first).finish == "timeout"
    assert last.sequences[0].terminal is None
    h.now += 2
    h.settle()
    assert end_of(last).finish == "timeout"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_head_that_finds_no_room_is_not_matched_again_at_each_step(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness(scheduling_policy=policy, max_num_seqs=2, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    looks: list[object] = []
    find = PrefixReuse.find
    for at in (1, 2):
        h.submit(front, [at] * 6, tenant="a", max_tokens=40, ignore_eos=True)
    h.run_step()
    monkeypatch.setattr(
        PrefixReuse, "find", lambda self, head: (looks.append(head), find(self, head))[1]
    )
    waiting = h.submit(front, [3] * 30, tenant="b", max_tokens=2, ignore_eos=True)
    for _ in range(25):
        h.run_step()
    assert len(looks) <= 6, "looked for at each step"
    h.run()
    assert end_of(waiting).finish == "length"


def test_a_grammar_that_is_given_up_ends_those_that_wait_for_something_else() -> None:
    """Its holder waits for stored KV when the worker dies. The grammar, which is compiled anew,
    times out: the holder ends then, and the books hold."""
    h = Harness()
    h.disk = FakeDisk()
    front = h.connect()
    h.start_worker()
    grammar, prompt = Grammar("regex", "5"), list(range(3, 33))
    first = h.submit(front, prompt, grammar=grammar, max_tokens=20)
    h.run()
    assert end_of(first).finish == "stop"
    h.kill_worker()
    h.start_worker()
    h.submit(front, [1, 2], grammar=grammar, max_tokens=20)
    h.run()
    h.compile_at_once = h.disk_at_once = False
    holder = h.submit(front, prompt, grammar=grammar, max_tokens=20)
    assert h.core.state.remote_kv.num_waiting == 1
    h.kill_worker()
    h.start_worker()
    h.now += 31
    h.settle()
    assert end_of(holder).finish == "error"
    assert "could not be compiled within" in (end_of(holder).error or "")
    assert not h.core.has_open_requests


def test_log_probabilities_of_prompts_have_a_bound_in_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_builder, "MAX_PROMPT_LOGPROBS", 30)
    h = Harness(max_num_batched_tokens=256, max_model_len=128)
    front = h.connect()
    h.start_worker()
    told = [h.submit(front, [at] * 40, prompt_logprobs=2, **ENDLESS) for at in (1, 2)]
    free = h.submit(front, [3] * 40, **ENDLESS)
    while any(request.sequences[0].terminal is None for request in (*told, free)):
        result = h.run_step()
        assert result is not None
        assert sum(len(slot.prompt_logprobs or ()) for slot in result.slots) <= 30
    assert end_of(told[1]).finish == "length"
