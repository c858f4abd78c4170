"""GGUF files whose layers have a window of which they don't say how wide it is."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.hub_reading import FULL, SLIDING
from penstock.families.served import GGUF_ARCHITECTURES
from penstock.formats.fields import Fields

KEYS: dict[str, Any] = {
    "block_count": 3,
    "context_length": 128,
    "attention.sliding_window_pattern": [True, True, False],
}


@pytest.mark.parametrize("name", ["gemma3n", "gemma4"])
@pytest.mark.parametrize(
    ("stated", "said"),
    [({}, "attention.sliding_window"), ({"attention.sliding_window": 0}, "at least 1")],
)
def test_a_window_without_a_width_is_refused(name: str, stated: dict[str, Any], said: str) -> None:
    """Its layers would see everything, and the text be another one."""
    reader = GGUF_ARCHITECTURES[name].read_gguf
    assert reader is not None
    with pytest.raises(UnsupportedModel, match=said):
        reader(GGUFMetadata(Fields(KEYS | stated, name), (), 64))


def test_layers_that_see_everything_need_none() -> None:
    none = {"attention.sliding_window_pattern": [False, False, False]}
    assert GGUFMetadata(Fields(KEYS | none, "x"), (), 64).layer_kinds() == [FULL] * 3
    wide = KEYS | {"attention.sliding_window": 16}
    assert GGUFMetadata(Fields(wide, "x"), (), 64).layer_kinds() == [SLIDING, SLIDING, FULL]
