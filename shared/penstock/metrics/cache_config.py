"""vLLM's labels of `vllm:cache_config_info`, as far as there is such a thing here."""

from __future__ import annotations

CACHE_CONFIG = ("block_size", "num_gpu_blocks", "num_cpu_blocks", "enable_prefix_caching")


def cache_config(
    block_size: int, blocks: int, host_blocks: int, prefix_caching: bool
) -> tuple[str, str, str, str]:
    """The labels' values. blocks: of the device's pool, whatever the device.  host_blocks: of the
    host tier."""
    return str(block_size), str(blocks), str(host_blocks), str(prefix_caching)
