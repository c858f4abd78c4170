"""Converts a Whisper of the hub's format to CTranslate2's, for faster-whisper.

    PEERS_DIR/fasterwhisper/bin/python loadtest/peers/convert_speech.py FOLDER TO SITE_PACKAGES

SITE_PACKAGES: of an environment that has torch and transformers, Penstock's own for instance.
Imports nothing of Penstock.
"""

from __future__ import annotations

import sys


def main(folder: str, to: str, site_packages: str) -> None:
    sys.path.insert(0, site_packages)
    from ctranslate2.converters import (  # type: ignore[import-not-found, unused-ignore]
        TransformersConverter,
    )

    copied = ["tokenizer.json", "preprocessor_config.json"]
    TransformersConverter(folder, copy_files=copied).convert(to, force=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
