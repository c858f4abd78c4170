"""faster-whisper (CTranslate2), by its own environment's Python. Imports nothing of Penstock.

    PEERS_DIR/fasterwhisper/bin/python loadtest/peers/speech_peer.py convert FOLDER TO SITE_PACKAGES
    PEERS_DIR/fasterwhisper/bin/python loadtest/peers/speech_peer.py run TO RECORDING THREADS TIMES

convert: a Whisper of the hub's format to CTranslate2's; SITE_PACKAGES: of an environment that has
torch and transformers, Penstock's own for instance.  run: what that model takes for a recording;
writes one JSON object to stdout.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version


def convert(folder: str, to: str, site_packages: str) -> None:
    sys.path.insert(0, site_packages)
    from ctranslate2.converters import (  # type: ignore[import-not-found, unused-ignore]
        TransformersConverter,
    )

    copied = ["tokenizer.json", "preprocessor_config.json"]
    TransformersConverter(folder, copy_files=copied).convert(to, force=True)


def run(folder: str, recording: str, threads: str, repeats: str) -> None:
    from faster_whisper import WhisperModel  # type: ignore[import-not-found, unused-ignore]

    model = WhisperModel(folder, device="cpu", compute_type="float32", cpu_threads=int(threads))
    seconds, text, tokens = [], "", 0
    for _ in range(int(repeats) + 1):
        begun = time.perf_counter()
        # Greedy, as OpenAI's endpoint is at temperature 0; a window's text isn't the next prompt.
        segments, _ = model.transcribe(
            recording, language="en", beam_size=1, condition_on_previous_text=False
        )
        found = list(segments)
        seconds.append(time.perf_counter() - begun)
        text = "".join(segment.text for segment in found)
        tokens = sum(len(segment.tokens) for segment in found)
    packages = {name: version(name) for name in ("faster-whisper", "ctranslate2")}
    told = {"seconds": seconds[1:], "text": text, "tokens": tokens, "versions": packages}
    print(json.dumps(told))


if __name__ == "__main__":
    {"convert": convert, "run": run}[sys.argv[1]](*sys.argv[2:])
