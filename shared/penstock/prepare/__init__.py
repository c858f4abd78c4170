"""Turns any model that a user may name into a prepared folder, so that only this package knows
the hub's and GGUF's file formats.

prepare        name -> prepared folder (manifest.json, tokenizer.json, chat_template.jinja)
load_manifest  prepared folder -> PreparedModel
"""

from __future__ import annotations

from penstock.prepare.folder import load_manifest
from penstock.prepare.prepare import prepare

__all__ = ["load_manifest", "prepare"]
