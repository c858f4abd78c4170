"""Which devices a kernel is launched early on. What such a kernel does first is read from its
compiled code: test_compile.py."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl

from loadtest.gpu.parts.steps import launched_early
from penstock_kernels.triton import early


@pytest.mark.parametrize(
    ("capability", "interpreted", "expected"),
    [((8, 0), False, False), ((8, 9), False, False), ((9, 0), False, True), ((9, 0), True, False)],
)
def test_only_hopper_and_what_followed_it(
    capability: tuple[int, int],
    interpreted: bool,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early, "INTERPRETED", tl.constexpr(interpreted))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    early.launched_early.cache_clear()
    try:
        found = early.launched_early(torch.device("cuda", 0))
    finally:
        early.launched_early.cache_clear()
    assert found == ({"EARLY": True, "launch_pdl": True} if expected else {"EARLY": False})


def test_a_measurement_without_early_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which leaves everything as it was."""
    monkeypatch.setattr(early, "INTERPRETED", tl.constexpr(False))
    device = torch.device("cpu")
    early.launched_early.cache_clear()
    try:
        with launched_early(on=False):
            assert early.launched_early(device) == {"EARLY": False}
        with launched_early(on=True):
            assert early.launched_early(device)["launch_pdl"]
        assert early.launched_early(device)["launch_pdl"]
    finally:
        early.launched_early.cache_clear()
