"""What doctor says of experts beside a card."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.prepare.describe import ExpertBytes
from penstock_worker.machine import expert_check
from penstock_worker.machine.expert_check import experts_beside_card

GIB = 1 << 30
HELD = ExpertBytes(file=38 * GIB, host=45 * GIB, card=70 * GIB)
"""The kernels' layout takes more."""


def about(**more: Any) -> Any:
    given = {
        "experts": SimpleNamespace(layers=36),
        "size": 60 * GIB,
        "format": "GGUF",
    }
    return SimpleNamespace(**given | more)


@pytest.mark.parametrize(("free", "level"), [(46, "ok"), (44, "note")])
def test_what_card_and_host_hold(free: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_check, "free_memory", lambda: free * GIB)
    [found] = experts_beside_card(about(), HELD)
    assert found.text.startswith("45.00 GiB in 36 layers; --device cuda --cpu-experts")
    assert "a card holds at least 22.00 GiB" in found.text
    assert "there, all of them take 70.00 GiB" in found.text
    assert ("44.0 GiB are free here" in found.text) is (level == "note")
    assert (found.name, found.ok, found.level) == ("experts", True, level)


@pytest.mark.parametrize("more", [{"experts": None}, {"format": "safetensors"}])
def test_others_have_no_such_finding(more: dict[str, Any]) -> None:
    assert experts_beside_card(about(**more), HELD) == []
    assert experts_beside_card(about(), None) == []
