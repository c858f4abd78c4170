"""The table of real models: what it says of a file, and where the guide has it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import real_models
from loadtest.peers.random_gguf import SHAPES, write
from loadtest.peers.servers import default_model
from loadtest.real_models import BEGIN, END, GUIDE, release_of, write_guide
from loadtest.report.files import RESULTS
from penstock.recommend.releases import RELEASES
from testing.quick_gguf import read_once


def document(**figures: float) -> real_models.Document:
    row = {
        "model": "a.gguf",
        "parameters": 1,
        "file_bytes": 98_400_000,
        "weight_bytes": 97_000_000,
        "bandwidth": 30e9,
        "expected": 183.6,
        "rounds": 3,
        "notes": [],
        "figures": {"penstock_without_drafts": figures},
    }
    return {"systems": ["penstock_without_drafts"], "rows": [row]}


def test_a_file_is_what_the_table_of_releases_says_of_it() -> None:
    found, known = release_of(default_model()), RELEASES[-1]
    sizes = ("parameters", "weights", "read", "kv_per_token", "layers", "vocabulary")
    assert [getattr(found, name) for name in sizes] == [getattr(known, name) for name in sizes]


def test_a_mixture_of_formats_takes_what_the_kernels_make_of_it(tmp_path: Path) -> None:
    """Computed by hand: Q4_K takes 37 eighths of a bit; Q6_K, in half of the layers' values and
    down projections and the embedding, takes 105 sixteenths."""
    path = tmp_path / "small.gguf"
    sizes = {"layers": 8, "hidden": 256, "heads": 2, "kv_heads": 2, "feed_forward": 512}
    shape = replace(SHAPES["qwen3-4b"], **sizes)
    with read_once():
        write(path, shape, default_model(), "Q4_K_M")
        found = release_of(path)
    keys, inner = 256 * 256, 512 * 256
    layer = 4 * keys + 3 * inner
    finer = 4  # layers 0, 3, 6 and 7 of eight
    norms = 8 * (2 * 256 + 2 * 128) + 256
    embedding = 49_152 * 256
    larger = finer * (keys + inner) + embedding
    sixteenths = 74 * (8 * layer - finer * (keys + inner)) + 105 * larger
    assert found.weights == found.read == sixteenths // 128 + 4 * norms
    assert found.parameters == 8 * layer + embedding + norms


def test_the_guide_gets_the_table_between_its_marks(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text(f"before\n{BEGIN}old\n{END}after\n")
    for _ in range(2):
        write_guide(guide, document(decode=101.26, prefill=1234.5))
    lines = guide.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    [row] = [line for line in lines if "a.gguf" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["`a.gguf`", "98 MB", "97 MB", "184", "101", "–", "1,234", "–"]
    assert "old" not in lines


def test_the_guide_has_the_newest_table() -> None:
    saved = RESULTS / "real_models.json"
    page = GUIDE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    if not saved.is_file():
        pytest.skip("loadtest.real_models has not been run for the results")
    assert real_models._table(json.loads(saved.read_text())) in page
