"""What several engine cores on one machine are for, and where they fetch KV of each other."""

from __future__ import annotations

from typing import get_args

import msgspec

from penstock.config.cache_settings import CacheSettings, KVRole
from penstock.config.settings import ServeConfig
from penstock.errors import StartupError
from penstock.net.runtime_dir import RuntimeDir

ROLES: tuple[KVRole, ...] = get_args(KVRole)


def kv_caches(config: ServeConfig, runtime: RuntimeDir) -> list[CacheSettings]:
    """The settings of each one's cache. Raises StartupError for roles that can't be."""
    count, cache = config.data_parallel_size, config.engine.cache
    if not config.kv_roles:
        _check_shared(count, cache)
        return [cache] * count
    roles = _roles(config.kv_roles, count)
    if cache.kv_endpoint or cache.kv_peers:
        raise StartupError("kv_roles makes endpoints by itself: leave out kv_endpoint and kv_peers")
    if config.executor != "local":
        raise StartupError(f"kv_roles is for workers here, and executor is {config.executor}")
    places = [runtime.endpoint(f"kv{number}") for number in range(count)]
    return [
        msgspec.structs.replace(cache, kv_role=role, kv_endpoint=place, kv_peers=",".join(places))
        for role, place in zip(roles, places, strict=True)
    ]


def _check_shared(count: int, cache: CacheSettings) -> None:
    if count > 1 and cache.kv_endpoint:
        raise StartupError(
            f"kv_endpoint is one place, and data_parallel_size is {count}: use kv_roles"
        )


def _roles(text: str, count: int) -> list[KVRole]:
    roles = [part.strip() for part in text.split(",")]
    wrong = next((each for each in roles if each not in ROLES), None)
    if wrong is not None:
        raise StartupError(f"kv_roles: {wrong!r} is not a role; allowed: {', '.join(ROLES)}")
    if len(roles) != count:
        raise StartupError(f"kv_roles has {len(roles)} roles, and data_parallel_size is {count}")
    if count < 2:
        raise StartupError("kv_roles is for several engine cores; data_parallel_size is 1")
    if all(role == "prefill" for role in roles):
        raise StartupError("kv_roles: somebody has to generate, too; all of them are prefill")
    return [role for each in roles for role in ROLES if role == each]
