"""Upper ends of buckets that more than one process uses: vLLM's, so that dashboards made for it
show the same detail."""

from __future__ import annotations

STEP_TOKENS = (1.0, 8.0, *(float(2**power) for power in range(4, 15)))
"""Upper ends of buckets for the tokens computed in a step."""
