"""Metrics of drafted tokens, by vLLM's names."""

from __future__ import annotations

DRAFTS = {
    "num_drafts": "Times that tokens were drafted for a sequence.",
    "num_draft_tokens": "Drafted tokens computed.",
    "num_accepted_tokens": "Drafted tokens that were right.",
}
"""What each counter counts, by the part of its name after `vllm:spec_decode_`."""
