"""Each setting of the scheduler, of limits and of the cache changes what it says, by as much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.config.settings import CacheSettings, LimitSettings, SchedulerSettings
from penstock.protocol.common import LogitsAdjustments, SessionTerms
from penstock_engine.facts import EngineFacts
from penstock_engine.policies.pace import StepPace, pace_of
from tests.engine.fake_media import picture
from tests.engine.handlers.adopted import FIRST, LONG, PROMPT
from tests.engine.handlers.test_sleep import sleeping
from tests.engine.harness import Harness
from tests.engine.media.media_requests import ask, finish_of, harness
from tests.engine.small_facts import facts

ENDLESS = {"ignore_eos": True}
TESTS = Path(__file__).parents[1]


def with_cache(cache: CacheSettings) -> EngineFacts:
    of = facts()
    return msgspec.structs.replace(of, config=msgspec.structs.replace(of.config, cache=cache))


def begun(requests: int, tokens: int = 4, **options: Any) -> Harness:
    """A core with requests of so many tokens, whose first step was planned."""
    h = Harness(block_size=4, max_model_len=64, **options)
    front = h.connect()
    for number in range(requests):
        h.submit(front, [1 + number] * tokens, max_tokens=8, **ENDLESS)
    h.start_worker(200)
    return h


@pytest.mark.parametrize("value", [1, 2, 5])
def test_max_num_seqs(value: int) -> None:
    h = begun(8, max_num_seqs=value, max_num_batched_tokens=64)
    assert len(h.core.state.scheduling.running) == value
    assert h.setup is not None
    assert h.setup.max_num_seqs == value


@pytest.mark.parametrize("value", [5, 9, 30])
def test_max_num_batched_tokens(value: int) -> None:
    h = begun(1, 40, max_num_batched_tokens=value)
    assert h.plan is not None
    assert sum(work.count for work in h.plan.work) == value
    assert h.setup is not None
    assert h.setup.max_num_batched_tokens == value


@pytest.mark.parametrize("value", [1, 2, 4])
def test_max_steps_in_flight(value: int) -> None:
    h = begun(2, max_steps_in_flight=value)
    h.settle()
    assert len(h.plans) == value


def paced(**settings: float) -> StepPace:
    """It has seen that four decodes take 10 ms, and each token beside them 1 ms."""
    pace = pace_of(SchedulerSettings(**settings))
    pace.observe(4, 4, 0.010)
    pace.observe(4, 104, 0.110)
    return pace


@pytest.mark.parametrize("value", [40.0, 60.0])
def test_short_step_ms(value: float) -> None:
    tokens = paced(short_step_ms=value, max_step_slowdown=1.5).tokens(4)
    assert tokens == pytest.approx(4 + value - 10)


@pytest.mark.parametrize("value", [3.0, 8.0])
def test_max_step_slowdown(value: float) -> None:
    tokens = paced(short_step_ms=1.0, max_step_slowdown=value).tokens(4)
    assert tokens == pytest.approx(4 + value * 10 - 10)


@pytest.mark.parametrize("value", [4, 10])
def test_max_carried_tokens(value: int) -> None:
    """Requests of four tokens: as many start in a step as the bound lets bring theirs."""
    h = begun(4, max_carried_tokens=value, max_num_batched_tokens=64)
    assert h.plan is not None
    assert len(h.plan.admitted) == max(1, value // 4)


@pytest.mark.parametrize("value", [4, 8, 12])
def test_max_encoded_rows(value: int) -> None:
    """Pictures of four rows: so many of them in the first step that encodes."""
    h = harness(max_encoded_rows=value, max_num_seqs=8, max_num_batched_tokens=200)
    h.media_rows = 100
    front = h.connect()
    h.start_worker()
    scores = [ask(h, front, picture(number)) for number in range(5)]
    h.run()
    assert h.worker is not None
    encoded = [len(plan.encode) for plan in h.worker.log if plan.encode]
    assert max(encoded) == value // 4
    assert [finish_of(score) for score in scores] == ["length"] * 5


@pytest.mark.parametrize("value", [3, 7])
def test_max_waiting_requests(value: int) -> None:
    h = Harness(max_waiting_requests=value)
    front = h.connect()
    asked = [h.submit(front, [1] * 4) for _ in range(12)]
    assert sum(each.accepted for each in asked) == value


@pytest.mark.parametrize("value", [40, 100])
def test_max_waiting_tokens(value: int) -> None:
    h = Harness(max_waiting_tokens=value)
    front = h.connect()
    asked = [h.submit(front, [1] * 10) for _ in range(20)]
    assert sum(each.accepted for each in asked) == value // 10


@pytest.mark.parametrize("value", [40, 60])
def test_max_request_tokens(value: int) -> None:
    h = Harness(limits=LimitSettings(max_request_tokens=value))
    front = h.connect()
    fits = h.submit(front, [1] * 10, n=2, max_tokens=value // 2 - 10)
    more = h.submit(front, [1] * 10, n=2, max_tokens=value // 2 - 9)
    assert (fits.accepted, more.accepted) == (True, False)


@pytest.mark.parametrize(
    ("name", "adjusted"),
    [
        ("max_logit_bias", lambda count: {"bias": dict.fromkeys(range(count), 1.0)}),
        ("max_allowed_token_ids", lambda count: {"allowed": tuple(range(count))}),
        ("max_bad_words_tokens", lambda count: {"bad_words": ((1,),) * count}),
    ],
)
@pytest.mark.parametrize("value", [2, 5])
def test_limits_of_adjustments(name: str, adjusted: Any, value: int) -> None:
    h = Harness(limits=LimitSettings(**{name: value}))
    front = h.connect()
    for count in (value, value + 1):
        adjustments = LogitsAdjustments(**adjusted(count))
        asked = h.submit(front, [1] * 4, sampling={"adjustments": adjustments})
        assert asked.accepted == (count == value), asked.rejected


@pytest.mark.parametrize("value", [4, 8])
def test_kv_block_size(value: int) -> None:
    h = Harness(block_size=value)
    front = h.connect()
    h.start_worker()
    for expected in (0, 24):
        asked = h.submit(front, [*range(1, 27)], max_tokens=1)
        h.run()
        assert asked.cached == expected
    assert h.setup is not None
    assert h.setup.block_size == value


@pytest.mark.parametrize(("value", "cached"), [(True, 24), (False, 0)])
def test_enable_prefix_caching(value: bool, cached: int) -> None:
    h = Harness(block_size=4, prefix_caching=value)
    front = h.connect()
    h.start_worker()
    for _ in range(2):
        asked = h.submit(front, [*range(1, 27)], max_tokens=1)
        h.run()
    assert asked.cached == cached


@pytest.mark.parametrize(("value", "times"), [(True, 1), (False, 2)])
def test_enable_encoder_cache(value: bool, times: int) -> None:
    h = harness(encoder_cache=value, prefix_caching=False)
    front = h.connect()
    h.start_worker()
    for _ in range(2):
        assert finish_of(ask_once(h, front)) == "length"
    assert h.worker is not None
    assert sum(h.worker.media.encoded.values()) == times


def ask_once(h: Harness, front: Any) -> Any:
    score = ask(h, front, picture(1))
    h.run()
    return score


def test_what_a_worker_is_told() -> None:
    """Each number is another one, so that none stands in another's place."""
    cache = CacheSettings(
        kv_block_size=4,
        num_kv_blocks=501,
        kv_memory_fraction=0.11,
        kv_memory_gib=2.0,
        host_kv_gib=3.0,
        gpu_memory_utilization=0.55,
        encoder_cache_rows=707,
        media_load_mib=9,
        disk_kv_gib=5.0,
        disk_kv_write_mib=13.0,
        kv_transfer_gib=7.0,
        kv_cache_dtype="float32",
        state_checkpoint_tokens=44,
        kv_store_address="there",
    )
    setup = with_cache(cache).setup(1)
    told = {
        "block_size": 4,
        "num_kv_blocks": 501,
        "kv_memory_fraction": 0.11,
        "kv_memory_bytes": 2 << 30,
        "host_kv_bytes": 3 << 30,
        "gpu_memory_utilization": 0.55,
        "encoder_cache_rows": 707,
        "media_load_bytes": 9 << 20,
        "disk_kv_bytes": 5 << 30,
        "disk_kv_write_bytes": 13 << 20,
        "kv_transfer_bytes": 7 << 30,
        "kv_cache_dtype": "float32",
        "state_checkpoint_tokens": 44,
        "kv_store_address": "there",
    }
    assert {name: getattr(setup, name) for name in told} == told


@pytest.mark.parametrize("value", [50.0, 200.0])
def test_max_kv_retention_seconds(value: float) -> None:
    cache = msgspec.structs.replace(
        facts().config.cache, max_kv_retention_seconds=value, kv_retention_seconds=1.0
    )
    h = Harness(with_cache(cache))
    front = h.connect()
    for seconds in (value, value + 1):
        asked = h.submit(front, [1] * 4, session=SessionTerms("s", retention_s=seconds))
        assert asked.accepted == (seconds == value), asked.rejected


@pytest.mark.parametrize("value", [20.0, 300.0])
def test_kv_retention_seconds(value: float) -> None:
    """Of a session whose request doesn't say it."""
    cache = msgspec.structs.replace(facts().config.cache, kv_retention_seconds=value)
    h = Harness(with_cache(cache))
    front = h.connect()
    h.start_worker()
    h.submit(front, [*range(1, 15)], max_tokens=1, session=SessionTerms("s"))
    h.run()
    for seconds, live in ((value - 1, 1), (2, 0)):
        h.now += seconds
        h.settle()
        assert h.core.state.kv_sessions.num_live == live


@pytest.mark.parametrize("value", [0.0, 3.0, 40.0])
def test_resume_grace_seconds(value: float) -> None:
    h = Harness(resume_grace_seconds=value)
    front = h.connect()
    h.start_worker()
    h.submit(front, PROMPT, claim=FIRST, **LONG)
    for _ in range(4):
        h.run_step()
    h.disconnect(front)
    if value:
        h.now += value - 1
        h.settle()
        assert h.core.state.scheduling.num_running == 1
        h.now += 2
        h.settle()
    h.run_step()
    assert h.core.state.scheduling.num_running == 0


@pytest.mark.parametrize("minutes", [2.0, 5.0])
@pytest.mark.parametrize("level", [1, 2])
def test_idle_sleep(minutes: float, level: int) -> None:
    h = Harness(idle_sleep_minutes=minutes, idle_sleep_level=level)
    h.connect()
    h.start_worker()
    end = h.now + 60 * minutes
    for at, expected in ((end - 6, 0), (end + 6, level)):
        while h.now < at:
            h.now = min(at, max(h.now + 1e-3, h.core.next_deadline()))
            h.settle()
        assert sleeping(h) == (expected, False)


HERE: dict[str, str] = {
    "idle_sleep_minutes": "test_idle_sleep",
    "idle_sleep_level": "test_idle_sleep",
    "max_logit_bias": "test_limits_of_adjustments",
    "max_allowed_token_ids": "test_limits_of_adjustments",
    "max_bad_words_tokens": "test_limits_of_adjustments",
    **dict.fromkeys(
        (
            "num_kv_blocks",
            "kv_memory_fraction",
            "kv_memory_gib",
            "host_kv_gib",
            "gpu_memory_utilization",
            "encoder_cache_rows",
            "media_load_mib",
            "disk_kv_gib",
            "disk_kv_write_mib",
            "kv_transfer_gib",
            "kv_cache_dtype",
            "state_checkpoint_tokens",
            "kv_store_address",
        ),
        "test_what_a_worker_is_told",
    ),
}
"""Settings that a test of this file is about whose name says something else."""
ELSEWHERE: dict[str, str] = {
    "audit_share": "engine/waiting/test_live_audit.py",
    "calculate_kv_scales": "worker/cuda/test_calculated_scales.py",
    "disk_kv_dir": "system/test_agent_sessions.py",
    "disk_kv_key_file": "system/test_kv_store.py",
    "kv_endpoint": "system/test_kv_transfer.py",
    "kv_fetch_ahead": "system/test_kv_windows_served.py",
    "kv_handover_seconds": "system/test_kv_handover_served.py",
    "kv_peers": "shared/net/test_kv_roles.py",
    "kv_prefill_tokens": "system/test_kv_roles_served.py",
    "kv_role": "shared/net/test_kv_roles.py",
    "kv_store": "system/test_kv_store.py",
    "preemption_mode": "engine/scheduler/test_prefix_reuse.py",
    "scheduling_policy": "engine/policies/test_registry.py",
    "session_kv_share": "engine/scheduler/test_kv_sessions.py",
    "tenants": "engine/policies/test_fair_admission.py",
}
"""Settings that a test of another file is about."""


CALLED = {"session_kv_share": "session_share"}
"""Names by which small_facts has them, where they are others."""


def test_every_setting_has_one() -> None:
    kinds = (SchedulerSettings, LimitSettings, CacheSettings)
    fields = {field.name for kind in kinds for field in msgspec.structs.fields(kind)}
    here = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    known = (fields & here) | HERE.keys() | ELSEWHERE.keys()
    assert fields - known == set()
    assert known - fields == set()
    for name, test in HERE.items():
        assert test in globals(), name
    for name, file in ELSEWHERE.items():
        text = (TESTS / file).read_text(encoding="utf-8").replace("-", "_")
        assert CALLED.get(name, name) in text, f"{file} says nothing of {name}"
