"""Drafts whether they pay or not, so that no test depends on how busy a machine is."""

from __future__ import annotations

import pytest

from penstock_engine.speculation.draft_policy import DraftPolicy, Offer, StepSize
from penstock_engine.speculation.upkeep import Upkeep


def as_many_as_there_are(
    policy: DraftPolicy, offers: list[Offer], size: StepSize, left: int
) -> list[int]:
    """In place of DraftPolicy.choose, which goes by what pays."""
    counts = []
    for offer in offers:
        counts.append(min(offer.most, left))
        left -= counts[-1]
    return counts


def always(policy: DraftPolicy, decodes: int) -> bool:
    """In place of DraftPolicy.wants_proposed, which goes by what steps have taken, too."""
    return True


def never(upkeep: Upkeep, sequences: int) -> bool:
    """In place of Upkeep.rests, which does, too."""
    return False


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftPolicy, "choose", as_many_as_there_are)
    monkeypatch.setattr(DraftPolicy, "wants_proposed", always)
    monkeypatch.setattr(Upkeep, "rests", never)
