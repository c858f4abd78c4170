"""What several engine cores are for: settings that fit together, and those that don't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import CacheSettings, EngineConfig, ServeConfig
from penstock.errors import StartupError
from penstock.net.runtime_dir import RuntimeDir
from penstock.supervisor.replicas import kv_caches
from penstock_engine.kv.settings import check_kept, fetches_ahead, kv_peers, prefills_from


def caches(tmp_path: Path, roles: str, count: int, **cache: Any) -> list[CacheSettings]:
    engine = EngineConfig(cache=CacheSettings(**cache))
    config = ServeConfig(engine=engine, data_parallel_size=count, kv_roles=roles)
    return kv_caches(config, RuntimeDir(tmp_path, -1))


def test_each_fetches_of_all_others(tmp_path: Path) -> None:
    made = caches(tmp_path, "prefill, decode,both", 3, kv_prefill_tokens=7)
    assert [each.kv_role for each in made] == ["prefill", "decode", "both"]
    places = [f"ipc://{tmp_path}/kv{number}.sock" for number in range(3)]
    assert [each.kv_endpoint for each in made] == places
    assert kv_peers(made[1]) == (places[0], places[2])
    for each in made:
        check_kept(each)
    assert [prefills_from(each) for each in made] == [7, 0, 0]


def test_without_roles_nothing_changes(tmp_path: Path) -> None:
    assert caches(tmp_path, "", 2) == [CacheSettings()] * 2


@pytest.mark.parametrize(
    ("roles", "count", "cache", "message"),
    [
        ("prefill,answer", 2, {}, "'answer' is not a role; allowed: both, prefill, decode"),
        ("prefill,decode", 3, {}, "2 roles, and data_parallel_size is 3"),
        ("both", 1, {}, "several engine cores; data_parallel_size is 1"),
        ("prefill,prefill", 2, {}, "somebody has to generate"),
        ("both,both", 2, {"kv_peers": "ipc:///x"}, "leave out kv_endpoint and kv_peers"),
        ("", 2, {"kv_endpoint": "ipc:///x"}, "one place, and data_parallel_size is 2"),
    ],
)
def test_roles_that_can_not_be(
    tmp_path: Path, roles: str, count: int, cache: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        caches(tmp_path, roles, count, **cache)


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        ({"kv_role": "prefill"}, "nothing can fetch the KV: kv_endpoint isn't set"),
        ({"kv_role": "decode"}, "nowhere to fetch KV from: set kv_peers"),
        ({"kv_endpoint": "tcp://here"}, "'tcp://here' is not an endpoint"),
        ({"kv_peers": ",".join(f"ipc:///{n}" for n in range(17))}, "at most 16 are allowed"),
    ],
)
def test_one_engine_core_s_settings_that_do_not_fit(cache: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        check_kept(CacheSettings(**cache))


def test_who_fetches_ahead(tmp_path: Path) -> None:
    assert not any(map(fetches_ahead, caches(tmp_path, "prefill,decode", 2)))
    assert all(map(fetches_ahead, caches(tmp_path, "prefill,decode", 2, kv_fetch_ahead=True)))
    assert not fetches_ahead(CacheSettings(kv_fetch_ahead=True)), "there is nobody to fetch from"
