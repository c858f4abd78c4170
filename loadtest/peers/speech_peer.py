"""What faster-whisper (CTranslate2) takes for a recording. Run by its own environment's Python:

    PEERS_DIR/fasterwhisper/bin/python loadtest/peers/speech_peer.py \\
        FOLDER RECORDING THREADS REPEATS

FOLDER: a model converted to CTranslate2's format. Writes one JSON object to stdout. Imports nothing
of Penstock.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version


def main(folder: str, recording: str, threads: int, repeats: int) -> None:
    from faster_whisper import WhisperModel  # type: ignore[import-not-found, unused-ignore]

    model = WhisperModel(folder, device="cpu", compute_type="float32", cpu_threads=threads)
    seconds, text, tokens = [], "", 0
    for _ in range(repeats + 1):
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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
