"""A store that a plug-in brings: the documentation's example in Redis. Answers have the same bits
with it and without, whatever becomes of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.errors import StartupError
from testing.examples import install
from testing.in_process import System
from testing.redis_server import RedisServer
from tests.system.test_disk_kv import (  # noqa: F401
    FLOAT,
    KINDS,
    WAY,
    alone,
    blocks_read,
    folder,
    one_by_one,
)

pytestmark = [pytest.mark.timeout(300)]

ALL = 9 + 7
"""Full blocks of the prompts."""


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def redis(shared_redis: RedisServer) -> Any:
    """A client; the database is empty."""
    from redis import Redis

    with Redis.from_url(shared_redis.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package is installed."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(install("kv-store", site)))
    import example_kv_store

    yield example_kv_store
    del sys.modules["example_kv_store"]


@pytest.mark.parametrize("numerics", KINDS, ids=str)
def test_another_life_finds_blocks_in_redis_and_says_the_same(
    folder: Path,  # noqa: F811
    shared_redis: RedisServer,
    redis: Any,
    example: ModuleType,
    numerics: Any,
) -> None:
    way = replace(WAY, store="redis", store_address=shared_redis.url)
    first, life = one_by_one(folder, numerics, way)
    assert first == alone(folder, numerics)
    assert blocks_read(life) == 0
    assert redis.dbsize() >= ALL
    second, life = one_by_one(folder, numerics, way)
    assert second == alone(folder, numerics)
    assert blocks_read(life) == ALL


def test_redis_is_killed_while_it_is_read(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = RedisServer(tmp_path)
    try:
        way = replace(WAY, store="redis", store_address=server.url)
        one_by_one(folder, FLOAT, way)
        asked: list[bytes] = []
        read = example.RedisStore.read

        def read_once_more(store: object, key: bytes) -> bytes | None:
            asked.append(key)
            if len(asked) == 4:
                server.kill()
            return read(store, key)

        monkeypatch.setattr(example.RedisStore, "read", read_once_more)
        found, life = one_by_one(folder, FLOAT, way)
    finally:
        server.kill()
    assert found == alone(folder, FLOAT)
    assert blocks_read(life) == 3
    # It never comes back: the next life asks in vain, and computes.
    found, life = one_by_one(folder, FLOAT, way)
    assert found == alone(folder, FLOAT)
    assert blocks_read(life) == 0


def test_redis_hangs(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(example, "SECONDS", 0.2)
    server = RedisServer(tmp_path)
    try:
        way = replace(WAY, store="redis", store_address=server.url)
        one_by_one(folder, FLOAT, way)
        server.hang()
        found, life = one_by_one(folder, FLOAT, way)
    finally:
        server.kill()
    assert found == alone(folder, FLOAT)
    assert blocks_read(life) == 0


def test_what_was_changed_in_redis_is_computed(
    folder: Path,  # noqa: F811
    shared_redis: RedisServer,
    redis: Any,
    example: ModuleType,
) -> None:
    way = replace(WAY, store="redis", store_address=shared_redis.url)
    one_by_one(folder, FLOAT, way)
    for number, name in enumerate(sorted(redis.keys())):
        if number % 3 == 0:
            value = bytearray(redis.get(name))
            value[len(value) // 2] ^= 1
            redis.set(name, bytes(value))
        elif number % 3 == 1:
            redis.set(name, b"something else")
    found, life = one_by_one(folder, FLOAT, way)
    assert found == alone(folder, FLOAT)
    assert life.core.state.counts.disk_blocks_missed > 0


def test_what_has_gone_from_the_disk_is_in_redis(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    shared_redis: RedisServer,
    redis: Any,
    example: ModuleType,
) -> None:
    disk = tmp_path / "disk"
    way = replace(WAY, disk=str(disk), store="redis", store_address=shared_redis.url)
    one_by_one(folder, FLOAT, way)
    names = redis.keys()
    for name in names[::2]:
        redis.delete(name)
    found, life = one_by_one(folder, FLOAT, way)
    assert (found, blocks_read(life)) == (alone(folder, FLOAT), ALL)
    for path in disk.glob("*/*.kv"):
        path.unlink()
    redis.flushall()
    _, life = one_by_one(folder, FLOAT, replace(way, disk=""))
    assert blocks_read(life) == 0
    found, life = one_by_one(folder, FLOAT, way)
    assert (found, blocks_read(life)) == (alone(folder, FLOAT), ALL)


def test_what_is_kept_is_encrypted(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    shared_redis: RedisServer,
    redis: Any,
    example: ModuleType,
) -> None:
    """In both places. Who has another key, or none, finds nothing."""
    pytest.importorskip(
        "cryptography", reason="no cryptography: pip install 'penstock-llm[encryption]'"
    )
    keys = [tmp_path / "key", tmp_path / "other"]
    for number, path in enumerate(keys):
        path.write_text(f"{number:064x}\n")
    both = replace(WAY, disk=str(tmp_path / "disk"), store="redis", store_address=shared_redis.url)
    way = replace(both, key_file=str(keys[0]))
    first, _ = one_by_one(folder, FLOAT, way)
    assert first == alone(folder, FLOAT)
    for found_by, blocks in ((replace(way, store=""), ALL), (replace(way, disk=""), ALL)):
        found, life = one_by_one(folder, FLOAT, found_by)
        assert (found, blocks_read(life)) == (first, blocks)
    for stranger in (both, replace(both, key_file=str(keys[1]))):
        found, life = one_by_one(folder, FLOAT, stranger)
        assert (found, blocks_read(life)) == (first, 0)


def test_without_any_plug_in_the_start_says_so(folder: Path) -> None:  # noqa: F811
    with pytest.raises(StartupError, match=r"no plug-in of the group penstock\.kv_stores is"):
        loaded(folder, replace(WAY, store="redis"))


def test_stores_that_will_not_do_are_refused(
    folder: Path,  # noqa: F811
    example: ModuleType,
) -> None:
    with pytest.raises(StartupError, match="--kv-store is other; allowed: redis"):
        loaded(folder, replace(WAY, store="other"))
    with pytest.raises(StartupError, match=r"--kv-store redis: example-kv-store 1\.0: ValueError"):
        loaded(folder, replace(WAY, store="redis", store_address="http://here"))
    with pytest.raises(StartupError, match="kv_store is set, but enable_prefix_caching is off"):
        System(folder, FLOAT, replace(WAY, store="redis", prefix_caching=False))
    with pytest.raises(StartupError, match="disk_kv_key_file is set, but neither"):
        System(folder, FLOAT, replace(WAY, key_file="key"))
    with pytest.raises(StartupError, match="disk_kv_key_file /no/key can't be read: No such file"):
        loaded(folder, replace(WAY, store="redis", key_file="/no/key"))


def loaded(folder: Path, way: Any) -> None:  # noqa: F811
    System(folder, FLOAT, way).step()
