"""Names, labels and buckets of metrics that more than one process shows: vLLM's, so that dashboards
made for it show the same."""

from __future__ import annotations

STEP_TOKENS = (1.0, 8.0, *(float(2**power) for power in range(4, 15)))
"""Upper ends of buckets for the tokens computed in a step."""


CACHE_CONFIG = ("block_size", "num_gpu_blocks", "num_cpu_blocks", "enable_prefix_caching")


def cache_config(
    block_size: int, blocks: int, host_blocks: int, prefix_caching: bool
) -> tuple[str, str, str, str]:
    """The labels' values. blocks: of the device's pool, whatever the device.  host_blocks: of the
    host tier."""
    return str(block_size), str(blocks), str(host_blocks), str(prefix_caching)


DRAFTS = {
    "num_drafts": "Times that tokens were drafted for a sequence.",
    "num_draft_tokens": "Drafted tokens computed.",
    "num_accepted_tokens": "Drafted tokens that were right.",
}
"""What each counter counts, by the part of its name after `vllm:spec_decode_`."""
