"""Steps of transformers with PEFT's adapters: many streams with an adapter each, in one batch.

A process of its own, which `loadtest.adapters` asks: its threads wait as torch's do by default. The
model has the sizes of the file and random weights, which take as long; in float32, which is the
faster dtype for it on processors without AMX. Stdin has one object, as `Asked`; stdout gets, for
each of its `adapters`, the seconds of a decode step and of a prompt's chunk.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import peft
import torch
import transformers

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
NONE = "__base__"
"""PEFT's word for rows without an adapter."""


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """Of a GGUF file. adapters: of each case, how many different ones the streams have; 0: none."""

    file: str
    ranks: list[int]
    adapters: list[int]
    threads: int
    streams: int
    context: int
    steps: int
    chunk: int


class PEFTSteps:
    """A model with an adapter of each rank."""

    def __init__(self, file: Path, ranks: Sequence[int], threads: int) -> None:
        torch.set_num_threads(threads)
        config: Any = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
        alone: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        self._config = config
        self._adapted: Any = None
        for number, rank in enumerate(ranks):
            own = peft.LoraConfig(r=rank, target_modules=MODULES, init_lora_weights=False)
            if self._adapted is None:
                self._adapted = peft.get_peft_model(alone, own, adapter_name=str(number))
            else:
                self._adapted.add_adapter(str(number), own)
        self._adapted.eval()

    def decode(self, streams: int, context: int, steps: int, *, adapters: int) -> float:
        """Seconds of a token for each stream: the median of some steps. adapters: how many
        different ones the streams have; 0: none has any."""
        tokens = torch.arange(streams)[:, None] + 100
        cache = self._cache(streams, context)
        times = []
        for _ in range(steps + 1):
            begun = time.perf_counter()
            self._pass(tokens, cache, adapters)
            times.append(time.perf_counter() - begun)
            cache.crop(-1)
        return statistics.median(times[1:])

    def prompt(self, tokens: int, steps: int, *, adapters: int) -> float:
        """Seconds of a prompt of so many tokens, its last one's logits."""
        times = []
        for _ in range(steps + 1):
            begun = time.perf_counter()
            self._pass(torch.arange(tokens)[None] + 100, transformers.DynamicCache(), adapters)
            times.append(time.perf_counter() - begun)
        return statistics.median(times[1:])

    def _cache(self, streams: int, context: int) -> Any:
        """Of so many tokens of each stream, with any numbers."""
        cache, config = transformers.DynamicCache(), self._config
        shape = (streams, config.num_key_value_heads, context)
        for layer in range(config.num_hidden_layers):
            values = torch.randn(*shape, config.hidden_size // config.num_attention_heads)
            cache.update(values, values.clone(), layer)
        return cache

    def _pass(self, tokens: torch.Tensor, cache: Any, adapters: int) -> None:
        names = [str(at % adapters) if adapters else NONE for at in range(len(tokens))]
        with torch.inference_mode():
            self._adapted(
                input_ids=tokens,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
                adapter_names=sorted(names),
            )


def main() -> None:
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Asked)
    own = PEFTSteps(Path(asked.file), asked.ranks, asked.threads)
    seconds = [
        (
            own.decode(asked.streams, asked.context, asked.steps, adapters=adapters),
            own.prompt(asked.chunk, 1, adapters=min(adapters, 1)),
        )
        for adapters in asked.adapters
    ]
    sys.stdout.buffer.write(msgspec.json.encode(seconds) + b"\n")


if __name__ == "__main__":
    main()
