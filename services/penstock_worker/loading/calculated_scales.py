"""Where the scales of an FP8 KV cache can be calculated."""

from __future__ import annotations

from penstock.errors import StartupError
from penstock.protocol.to_worker import Setup


def check_calculated(setup: Setup) -> None:
    """Raises StartupError for calculate_kv_scales where scales can't be calculated."""
    if not setup.calculate_kv_scales:
        return
    if setup.kv_cache_dtype != "fp8":
        raise StartupError(
            f"calculate_kv_scales needs kv_cache_dtype fp8, which is {setup.kv_cache_dtype}"
        )
    if setup.group is not None:
        raise StartupError(
            "calculate_kv_scales is not served where several workers share a model; a checkpoint's "
            "own scales are"
        )
