"""How tokens are drafted ahead of the model (speculative decoding).

A drafted token costs a row of a step, and saves a step if the model would have sampled the same one
there. Each is checked by sampling its position as usual, so no output depends on any of this.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DraftMethod = Literal["ngram", "suffix", "draft_model", "eagle3", "mtp"]

LOOKUPS: frozenset[DraftMethod] = frozenset({"ngram", "suffix"})
"""Methods that look drafts up; the others compute them."""
WITH_MODEL: frozenset[DraftMethod] = frozenset({"draft_model", "eagle3"})
"""Methods whose drafting model has a folder of its own; that of mtp may have one, too."""


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `--speculative-config`."""

    method: DraftMethod = "suffix"
    """ngram: what followed the output's last tokens earlier in the request (prompt lookup, Saxena
    2023). suffix: what mostly followed them in the request, and in recent outputs of the same
    tenant and salt (SuffixDecoding, Oliaro et al. 2024, arXiv:2411.04975). draft_model: a small
    model with the same vocabulary. eagle3 (Li et al. 2025, arXiv:2503.01840), mtp: heads that come
    with the model. With a `model`, mtp is an assistant, which borrows the model's keys and values
    (Gemma 4)."""
    num_speculative_tokens: int = 8
    """The most drafted tokens of a sequence and step. How many there are follows from what was
    kept so far and from what steps cost."""
    prompt_lookup_min: int = 2
    """Shortest run of tokens that ngram and suffix look for."""
    prompt_lookup_max: int = 8
    """Longest run of tokens that ngram and suffix look for."""
    model: str = ""
    """What drafts, for draft_model, eagle3 and assistants, as `--model` names one; for workers its
    prepared folder. Empty: nothing that has a folder of its own."""
    before: tuple[DraftMethod, ...] = ()
    """Methods that look drafts up, and are asked before `method`, in this order."""
    automatic: bool = False
    """Whether drafting is on by default, without having been asked for: then only where it has been
    measured to cost nothing."""
