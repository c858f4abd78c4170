"""What a model counts for, and what is left for its KV cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config.model_list import ModelEntry
from penstock.config.settings import ServeConfig
from penstock.config.tree import replace_settings
from penstock.errors import StartupError
from penstock.supervisor.models import processes


@pytest.fixture(autouse=True)
def weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "weights_gib", lambda folder: 2.0)


def counted(memory_gib: float | None, **settings: Any) -> tuple[float, float]:
    """What it counts for, and its KV cache's bound."""
    config = replace_settings(ServeConfig(), settings)
    entry = ModelEntry(model="m", memory_gib=memory_gib)
    config, gib = processes.within_memory(entry, config, Path())
    return gib, config.engine.cache.kv_memory_gib


def test_weights_and_caches_are_within_what_is_counted() -> None:
    assert counted(None, kv_memory_gib=3) == (5.0, 3.0)
    assert counted(None, kv_memory_gib=3, host_kv_gib=1) == (6.0, 3.0)
    assert counted(4.0, kv_memory_gib=3) == (4.0, 2.0)
    assert counted(4.0, kv_memory_gib=0) == (4.0, 2.0)
    assert counted(4.0, kv_memory_gib=3, host_kv_gib=0.5) == (4.0, 1.5)


def test_no_room_for_a_cache_is_refused() -> None:
    with pytest.raises(StartupError, match=r"weights take 2\.00 GiB, memory_gib is 2: there is no"):
        counted(2.0)
    with pytest.raises(StartupError, match=r"2\.00 GiB, blocks in the host's memory 2, memory_gib"):
        counted(4.0, host_kv_gib=2)


def test_a_cache_without_bound_has_no_place_in_a_bound() -> None:
    assert counted(None, kv_memory_gib=0) == (2.0, 0.0)
    with pytest.raises(StartupError, match="kv_memory_gib is 0, which bounds no KV cache"):
        counted(None, kv_memory_gib=0, models_memory_gib=8)


def test_a_draft_model_counts_too() -> None:
    drafting = {"method": "draft_model", "model": "/prepared/small", "num_speculative_tokens": 3}
    assert counted(None, kv_memory_gib=3, speculative_config=json.dumps(drafting)) == (7.0, 3.0)
    assert counted(6.0, kv_memory_gib=3, speculative_config=json.dumps(drafting)) == (6.0, 2.0)
    with pytest.raises(StartupError, match=r"weights take 4\.00 GiB, memory_gib is 4"):
        counted(4.0, speculative_config=json.dumps(drafting))
