"""The scaling curves: a few small points of the real model, and what is said of them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from loadtest import scaling
from loadtest.scaling import SMOKE, Curves, Extent


@pytest.mark.slow
@pytest.mark.long
def test_small_points_of_the_real_model(tmp_path: Path) -> None:
    try:
        importlib.import_module("penstock_kernels.cpu.library").load()
    except ImportError as error:
        pytest.skip(str(error))
    assert scaling.COMMAND.main(["--smoke", "--output", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "scaling.json").read_text())
    curves = document["curves"]
    assert curves["kv_bytes"] == 23_040
    for points in curves["batch"].values():
        assert [x for x, _ in points] == list(SMOKE.batches)
        assert all(milliseconds > 0 for _, milliseconds in points)
    for points in curves["context"].values():
        assert [x for x, _ in points] == list(SMOKE.contexts)
    assert [x for x, _ in curves["memory_context"]] == list(SMOKE.contexts)
    assert (tmp_path / "scaling.png").read_bytes()[:4] == b"\x89PNG"


def test_a_cliff_would_show() -> None:
    smooth = [[1, 10.0], [2, 11.0], [4, 13.0]]
    cliff = [[128, 10.0], [256, 30.0]]
    curves = Curves({"batch": smooth}, {"context": cliff}, [], [])
    said = scaling.steepest(curves)
    assert "(context): from 128 to 256" in said
    assert "1.50 ×" in said


def test_the_pool_holds_every_point() -> None:
    extent = Extent()
    assert extent.blocks * 16 >= extent.batches[-1] * extent.base
    assert extent.blocks * 16 >= extent.streams * extent.contexts[-1]
