"""Tiny mixtures in prepared folders, whose routed experts lie on the card or in the host's memory,
and what whole systems say with them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from penstock.prepare.folder import MANIFEST, TOKENIZER
from penstock.protocol.common import TokenSampling
from penstock_worker.forward.cpu_experts import HandOver
from penstock_worker.loading.loaded import Loaded
from penstock_worker.metrics.hand_over import HandOverCounts
from testing.in_process import Heard, Numerics, System, Way
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.test_cpu_experts import MIXTURES, written
from tests.worker.speculation.slow_heads import HIDDEN, VOCAB

NUMERICS = Numerics("triton", "auto", batch_invariant=True)
WAY = Way(
    block_size=4, budget=24, num_blocks=64, max_model_len=64, max_num_seqs=4, eager=True, threads=1
)
ON_CARD = replace(WAY, cpu_experts="0", prefix_caching=False)
WORDS = ("1", "all")
CASES = ("qwen3-moe-all", "gpt-oss")
COPIED_FROM = 4
"""Rows of a step from which on tests have an expert copied."""
GREEDY = TokenSampling(seed=1, temperature=0.0, logprobs=2)
SAMPLED = TokenSampling(seed=77, temperature=0.9, top_p=0.95, top_k=40, logprobs=2)

Said = dict[tuple[int, int], tuple[list[int], bytes]]


def prompt(length: int, seed: int) -> list[int]:
    own = random.Random(seed)
    return [own.randrange(3, VOCAB) for _ in range(length)]


REQUESTS = {
    1: (prompt(22, 1), 3, GREEDY, 1),
    2: (prompt(22, 1)[:12] + prompt(7, 2), 3, SAMPLED, 1),
}
"""The second one begins as the first does."""


def mixture(
    folder: Path, case: str, kind: str = "", size: float = 0.25, layers: int = 2
) -> CPUModel:
    """A mixture in a prepared folder, for which heads of tests.worker.speculation can draft.

    `kind`: of experts; empty: the case's. `size`: of weights.
    """
    folder.mkdir()
    usual, sizes = MIXTURES[case]
    own: dict[str, Any] = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "initializer_range": size}
    own["num_hidden_layers"] = layers
    if case == "gpt-oss":
        own["layer_types"] = ["sliding_attention", "full_attention"] * (layers // 2)
    model = written(folder / "model.gguf", case, kind or usual, sizes | own)
    prepared = msgspec.structs.replace(model.prepared(), digest=str(folder))
    (folder / MANIFEST).write_bytes(msgspec.json.encode(prepared))
    byte_tokens().save(str(folder / TOKENIZER))
    return model


def byte_tokens() -> Tokenizer:
    """Each byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {"<end>": 0, **{each: number for number, each in enumerate(alphabet, 1)}}
    tokenizer = Tokenizer(models.BPE(ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def counts_of(loaded: Loaded | None) -> HandOverCounts:
    """What card and host have handed to each other."""
    assert loaded is not None
    return loaded.runner.feature(HandOver)._counts


def copied_some(loaded: Loaded | None) -> None:
    """Of a prompt's rows, and not of all: the host has computed rows too."""
    counts = counts_of(loaded)
    assert min(counts.experts_copied, counts.card_rows, counts.host_rows) > 0


def said(heard: dict[tuple[int, int], Heard]) -> Said:
    return {
        key: (each.tokens, msgspec.msgpack.encode(each.logprobs)) for key, each in heard.items()
    }


def one_by_one(folder: Path, way: Way) -> Said:
    """What each request is answered that has had the system for itself."""
    system = System(folder, NUMERICS, way)
    for number, request in REQUESTS.items():
        system.submit(number, *request)
        system.run()
    return closed(system)


def closed(system: System) -> Said:
    """What a system has said, which ends here."""
    system.core.check()
    assert system.loaded is not None
    system.loaded.runner.close()
    return said(system.heard)
