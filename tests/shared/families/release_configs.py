"""config.json of releases of well-known models, by name; `configs/` has them by kind.

Where no release's file could be had, they are written from memory, in the makers' form: Qwen3-ASR,
Granite Speech, Jamba and Mamba, Apertus, BitNet, DBRX, Hunyuan-MT and Nanbeige, the newer models
that see, and Phi-4-multimodal; of `others`, the tests say it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("configs")


def releases(kind: str) -> dict[str, dict[str, Any]]:
    """Returns those of a kind, by name."""
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / f"{kind}.json").read_text("utf-8"))
    return found


def release(kind: str, name: str) -> dict[str, Any]:
    """Returns one of a kind."""
    return releases(kind)[name]
