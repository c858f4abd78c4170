"""A GGUF file as it is prepared: its manifest and its tokenizer."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from penstock.model.prepared_model import PreparedModel
from penstock.prepare import load_manifest, prepare


def prepared_file(path: Path) -> tuple[PreparedModel, Tokenizer]:
    folder = prepare(str(path), cache_dir=str(path.parent / "cache"))
    return load_manifest(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
