"""Adapters on the CUDA kernels whose rows have lengths of their own (DoRA), or that change the
embedding and output head, by factors or as whole matrices: the reference's numbers, which are
compared with merged models elsewhere, and a row's own bits in any company."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from penstock.adapters import UnfitAdapter
from penstock.model.config import ModelConfig
from testing.model_configs import varied
from tests.adapter_folders import Factors, random_factors, write_peft
from tests.interpreted_triton import one_kernel_at_a_time
from tests.worker.adapters.rig import factors_of
from tests.worker.checkpoints import tiny_files
from tests.worker.cuda.adapted import CONFIG, Row, Served, check_logits, close, words
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.parallel.together import Formed

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

ALPHA = 12.0
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
BIASED = varied(CONFIG, qkv_bias=True)
TIED = msgspec.structs.replace(BIASED, tie_word_embeddings=True, embedding_multiplier=3.0)
CONFIGS = [pytest.param(BIASED, id="untied"), pytest.param(TIED, id="tied")]


def ends(config: ModelConfig, rank: int) -> Factors:
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes = {EMBEDDING: (hidden, vocab), HEAD: (vocab, hidden)}
    return random_factors(shapes, rank, rank, 0.15)


def matrix(config: ModelConfig, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    shape = (config.vocab_size, config.hidden_size)
    return (random.standard_normal(shape) * 0.2).astype(np.float32)


def lengths_of(factors: Factors) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {
        name: random.uniform(0.5, 4, len(up)).astype(np.float32)
        for name, (_, up) in factors.items()
    }


def folders(root: Path, config: ModelConfig) -> list[Path]:
    """DoRA of modules and head; factors of both ends, and plain ones; and whole matrices."""
    long = factors_of(config, 6, 4) | {HEAD: ends(config, 6)[HEAD]}
    low = ends(config, 17) | factors_of(config, 5, 2, ("q_proj", "down_proj"))
    whole = {f"{name}.weight": matrix(config, at) for at, name in enumerate((EMBEDDING, HEAD))}
    layers = factors_of(config, 5, 3, ("v_proj", "o_proj"))
    return [
        write_peft(root / "dora", long, alpha=ALPHA, magnitudes=lengths_of(long)),
        write_peft(root / "low", low, alpha=ALPHA, r=5, rank_pattern={"x": 17}),
        write_peft(root / "whole", layers, whole=whole),
    ]


def steps() -> list[list[Row]]:
    """Prompts of three adapters and of none together, then decodes, which are captured."""
    prompts = [words(n, 3 + n) for n in range(4)]
    adapters = [1, -1, 0, 2]
    first: list[Row] = [(prompts[n], 0, n, adapters[n]) for n in range(4)]
    decodes: list[Row] = [([7 + n], len(prompts[n]), n, adapters[n]) for n in range(4)]
    return [first, decodes[:2], [decodes[3], decodes[2]]]


@pytest.mark.parametrize("config", CONFIGS)
def test_numbers_and_bits(tmp_path: Path, config: ModelConfig) -> None:
    files, paths = tiny_files(tmp_path, config), folders(tmp_path, config)
    ours, theirs = (
        Served(files, paths, backend, config=config, whole=True)
        for backend in ("triton", "reference")
    )
    found = check_logits(ours, theirs, steps(), least=0.05)
    for n in range(4):
        alone = [ours.logits(row)[0] for step in steps() for row in step if row[2] == n]
        crowd = [
            logits
            for step, mine in zip(steps(), found, strict=True)
            for row, logits in zip(step, mine, strict=True)
            if row[2] == n
        ]
        assert all(map(torch.equal, alone, crowd))


def test_activations_of_16_bits(tmp_path: Path) -> None:
    """They are as near to the numbers of float32 as the reference with 16 bits is."""
    files, paths = tiny_files(tmp_path, BIASED), folders(tmp_path, BIASED)
    ours, theirs, exact = (
        Served(files, paths, backend, config=BIASED, whole=True, dtype=dtype)
        for backend, dtype in (
            ("triton", "bfloat16"),
            ("reference", "bfloat16"),
            ("reference", "float32"),
        )
    )
    for step in steps():
        found, rounded, true = (each.logits(*step) for each in (ours, theirs, exact))
        for mine, other, wanted in zip(found, rounded, true, strict=True):
            assert (mine - wanted).abs().max() < 2 * (other - wanted).abs().max()
        for row, logits in zip(step, found, strict=True):
            assert torch.equal(ours.logits(row)[0], logits)


def test_places_are_taken_in_turns(tmp_path: Path) -> None:
    """What was in a place before, a whole matrix too, is not read any more."""
    files, paths = tiny_files(tmp_path, BIASED), folders(tmp_path, BIASED)
    served = Served(files, paths, "triton", most=1, config=BIASED, whole=True)
    rows: list[Row] = [(words(n, 4), 0, n, n) for n in range(3)]
    wanted = [served.logits(row)[0] for row in rows]
    for n in (1, 2, 0, 2, 1, 0):
        assert torch.equal(served.logits(rows[n])[0], wanted[n])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_computes_late(tmp_path: Path) -> None:
    """Adapters take each other's place while steps are in flight, and their heads with them. The
    host waits for none of it."""
    files, paths = tiny_files(tmp_path, BIASED), folders(tmp_path, BIASED)
    rows: list[Row] = [(words(n, 2), 0, n, n) for n in range(3)]
    asked = [*rows, *(([5 + n], 2, n, n) for n in (2, 0, 1))]
    with simulated(Device(1 << 30, pace=2)) as device:
        late = Served(files, paths, "triton", most=1, config=BIASED, whole=True)
        waits = len(device.waits)
        queued = [late.logits(step, wait=False)[0] for step in asked]
        assert not device.waits[waits:]
        found = [each.cpu() for each in queued]
    true = Served(files, paths, "reference", config=BIASED, whole=True)
    close(found, [true.logits(step)[0] for step in asked])


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_over_ranks(
    tmp_path: Path, tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_kernel_at_a_time(monkeypatch)
    files, paths = tiny_files(tmp_path, TIED), folders(tmp_path, TIED)
    true = Served(files, paths, "reference", config=TIED, whole=True)
    with Formed(tensor, pipeline) as formed:
        made = formed.each(
            lambda ranks: Served(files, paths, "triton", ranks=ranks, config=TIED, whole=True)
        )
        by_rank = dict(zip(formed.ranks, made, strict=True))
        for step in steps():
            *_, found = formed.each(lambda ranks, step=step: by_rank[ranks].logits(*step))
            close(found, true.logits(*step))


def test_whole_matrices_without_room_or_beyond_16_bits_are_refused(tmp_path: Path) -> None:
    """Matrices where no memory is kept for them, and numbers that 16 bits can't hold."""
    files, paths = tiny_files(tmp_path, BIASED), folders(tmp_path, BIASED)
    small = Served(files, paths[:2], "triton", config=BIASED, dtype="float16")
    with pytest.raises(UnfitAdapter, match=r"needs --lora-whole-matrices"):
        small.hold(paths[2])
    large = Served(files, [], "triton", config=BIASED, whole=True, dtype="float16")
    assert small.holds.nbytes < large.holds.nbytes
    values = matrix(BIASED, 1) + np.float32(1e6)
    path = write_peft(tmp_path / "large", {}, whole={f"{HEAD}.weight": values})
    with pytest.raises(UnfitAdapter, match="the adapter's numbers for lm_head are too large"):
        large.hold(path)
