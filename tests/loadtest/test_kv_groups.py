"""The measurement of KV memory against context, and that it counts what it says."""

from __future__ import annotations

import json
from pathlib import Path

from loadtest import kv_groups


def test_a_short_run(tmp_path: Path) -> None:
    assert kv_groups.COMMAND.main(["--longest", "2048", "--output", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "kv_groups.json").read_text())
    rows = {(row["model"], row["context"]): row for row in document["rows"]}
    assert len(rows) == len(kv_groups.MODELS) * 2
    for model in kv_groups.MODELS:
        whole = 2 * model.layers * model.kv_heads * model.head_dim * 2 * 2048 / (1 << 20)
        row = rows[model.name, 2048]
        assert row["before_mib"] == whole
        assert row["mib"] <= whole
    gemma = rows["Gemma 3 4B", 2048]
    # Five layers to a block: one group of them sees everything, six see 1,024 tokens.
    assert gemma["blocks"] == 2048 // 16 + 6 * 1024 // 16
    assert "| Gemma 3 4B " in (tmp_path / "kv_groups.md").read_text()
    assert (tmp_path / "kv_groups.png").stat().st_size > 0
