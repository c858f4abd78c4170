"""A slot's tokens: what was sampled counts for the adjustments of the next logits."""

from __future__ import annotations

import pytest

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock_worker.batch.slots import Slot
from penstock_worker.sampler.adjustments import adjustments_of

PROMPT = [3, 4, 5]


def slot() -> Slot:
    sampling = TokenSampling(seed=1, adjustments=LogitsAdjustments(presence=1.0, frequency=0.5))
    return Slot(
        list(PROMPT),
        num_prompt=len(PROMPT),
        index=0,
        sampling=sampling,
        blocks=[],
        adjustments=adjustments_of(sampling, PROMPT, len(PROMPT), vocab=16),
    )


def counts(slot: Slot) -> dict[int, int]:
    """How often each token counts as emitted."""
    assert slot.adjustments is not None
    penalties = slot.adjustments.penalties
    assert penalties is not None
    return dict(zip(penalties.ids.tolist(), penalties.counts.tolist(), strict=True))


@pytest.mark.parametrize("tokens", [[7], [7, 7, 9], [3, 7, 3, 3]])
@pytest.mark.parametrize("expected", [False, True], ids=["appended", "filled"])
def test_a_sampled_token_counts_once(tokens: list[int], expected: bool) -> None:
    held = slot()
    for token in tokens:
        if expected:
            held.fill(held.expect(0), token)
        else:
            held.append(token)
    assert held.token_ids == PROMPT + tokens
    assert counts(held) == {token: tokens.count(token) for token in tokens}
