"""Settings of the KV tiers below the device's pool, validated together."""

from __future__ import annotations

import re

from penstock.config.cache_settings import CacheSettings
from penstock.errors import StartupError

MAX_KV_PEERS = 16

_ENDPOINT = re.compile(r"ipc://.+|tcp://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%a-z]+\]|\*):[0-9]{1,5}")


def check_kept(cache: CacheSettings) -> None:
    """Raises StartupError for what doesn't fit together."""
    kept = [name for name in ("disk_kv_dir", "kv_store") if getattr(cache, name) is not None]
    elsewhere = kept + [name for name in ("kv_endpoint", "kv_peers") if getattr(cache, name)]
    if elsewhere and not cache.enable_prefix_caching:
        raise StartupError(
            f"{elsewhere[0]} is set, but enable_prefix_caching is off, and only blocks of earlier "
            "requests can be kept"
        )
    if cache.disk_kv_key_file is not None and not kept:
        raise StartupError("disk_kv_key_file is set, but neither disk_kv_dir nor kv_store is")
    if cache.kv_endpoint:
        _check_endpoint("kv_endpoint", cache.kv_endpoint)
    peers = kv_peers(cache)
    if cache.kv_role == "prefill" and not cache.kv_endpoint:
        raise StartupError(
            "kv_role is prefill, but nothing can fetch the KV: kv_endpoint isn't set"
        )
    if cache.kv_role == "decode" and not peers:
        raise StartupError("kv_role is decode, but there is nowhere to fetch KV from: set kv_peers")


def kv_peers(cache: CacheSettings) -> tuple[str, ...]:
    """Where other engine cores' workers are asked for blocks; not the own one. Raises
    StartupError."""
    listed = [part.strip() for part in cache.kv_peers.split(",") if part.strip()]
    for each in listed:
        _check_endpoint("kv_peers", each)
        if listed.count(each) > 1:
            raise StartupError(f"kv_peers: {each} appears twice")
    others = tuple(each for each in listed if each != cache.kv_endpoint)
    if len(others) > MAX_KV_PEERS:
        raise StartupError(
            f"kv_peers has {len(others)} entries; at most {MAX_KV_PEERS} are allowed"
        )
    return others


def prefills_from(cache: CacheSettings) -> int:
    """Tokens from which on prompts are computed for others; 0: all are taken (see Welcome)."""
    return cache.kv_prefill_tokens if cache.kv_role == "prefill" else 0


def fetches_ahead(cache: CacheSettings) -> bool:
    """Whether KV blocks are fetched from others ahead (see Welcome.expects)."""
    return cache.kv_fetch_ahead and bool(kv_peers(cache))


def _check_endpoint(setting: str, endpoint: str) -> None:
    if _ENDPOINT.fullmatch(endpoint) is None:
        raise StartupError(
            f"{setting}: {endpoint!r} is not an endpoint; allowed: ipc://PATH, tcp://HOST:PORT"
        )
