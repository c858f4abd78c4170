"""What transformers takes for the first token of an answer about a picture:

    python loadtest/pictures/transformers_peer.py MODEL FOLDER

FOLDER has the pictures, NUMBER.png. Reads one JSON object from stdin: `question`, `alone` and
`together`, numbers of pictures, and `threads`. Writes an object to stdout: seconds to each first
token; of pictures that come together, from when all came. In float32, which is the faster dtype for
it on processors without AMX.
"""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoProcessor, LlavaForConditionalGeneration


def main(model: str, folder: Path) -> None:
    asked = json.load(sys.stdin)
    torch.set_num_threads(asked["threads"])
    answer = Answering(model, folder, asked["question"])
    answer(0)
    alone = [answer(number) for number in asked["alone"]]
    begun, together = time.perf_counter(), []
    for number in asked["together"]:
        answer(number)
        together.append(time.perf_counter() - begun)
    print(json.dumps({"alone": alone, "together": together, "seconds": together[-1]}))


class Answering:
    """A loaded model."""

    def __init__(self, model: str, folder: Path, question: str) -> None:
        self._folder = folder
        self._processor: Any = AutoProcessor.from_pretrained(model, use_fast=False)
        self._model: Any = LlavaForConditionalGeneration.from_pretrained(
            model, dtype=torch.float32
        ).eval()
        content = [{"type": "image"}, {"type": "text", "text": question}]
        self._prompt = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True
        )

    def __call__(self, number: int) -> float:
        """Seconds from the picture's bytes to the first token."""
        data = (self._folder / f"{number}.png").read_bytes()
        begun = time.perf_counter()
        given = self._processor(
            images=Image.open(io.BytesIO(data)).convert("RGB"),
            text=self._prompt,
            return_tensors="pt",
        )
        with torch.inference_mode():
            self._model.generate(**given, max_new_tokens=1, do_sample=False)
        return time.perf_counter() - begun


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
