"""Random sounds in prompts, for our runner and for transformers."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.media.prepared import write
from penstock.model.transcription_facts import Alignment
from penstock.protocol.media import Media, MediaItem, MediaSpan
from penstock.protocol.worker_resources import LoadMedia
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.attention.reference_encoder import EncoderDecoderCache
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.cpu.backend import shown_heads
from penstock_worker.forward.reference_encoder import EncoderDecoderForward
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.hearing import Hearing
from penstock_worker.media.interface import MEL
from penstock_worker.sampler import choose
from penstock_worker.steps.runner import StepRunner
from tests.worker.driver import Job
from tests.worker.encoder_decoder.whisper_cases import ROWS, START, TARGETS, Ours
from tests.worker.runners import Observer, host_runner


def features(theirs: Any, seed: int) -> Tensor:
    """Features of a sound: [mel bins, frames]."""
    bins = theirs.config.num_mel_bins
    return torch.randn(bins, 2 * ROWS, generator=torch.Generator().manual_seed(seed))


def encoded(theirs: Any, seed: int) -> Tensor:
    """What transformers' encoder makes of it, [ROWS, hidden]."""
    with torch.inference_mode():
        found: Tensor = theirs.model.encoder(features(theirs, seed)[None]).last_hidden_state[0]
    return found


def name_of(seed: int) -> str:
    return f"{seed:064x}"


def content(theirs: Any, seed: int) -> bytes:
    """The item as a front end prepares it."""
    return write({MEL: features(theirs, seed)[None].numpy()})


def message_of(theirs: Any, seed: int, path: Path) -> LoadMedia:
    """Puts the item into a file for the worker."""
    data = content(theirs, seed)
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return LoadMedia(name_of(seed), "audio", ROWS, len(data), digest, (), str(path))


def media_of(seed: int) -> Media:
    item = MediaItem(name_of(seed), "audio", ROWS, 1, "0" * 64)
    return Media((item,), (MediaSpan(0, 0, ROWS),))


def words(count: int, seed: int) -> list[int]:
    choose_ = random.Random(seed)
    return [START, *(choose_.randrange(3, START) for _ in range(count))]


def job_of(seed: int, text: list[int], wanted: int, **options: Any) -> Job:
    return Job([START] * ROWS + text, wanted, media=media_of(seed), **options)


def theirs_of(model: Any, seed: int, text: list[int]) -> Tensor:
    """transformers' logits of the decoder's tokens, [tokens, vocab]."""
    with torch.inference_mode():
        found: Tensor = model(
            features(model, seed)[None], decoder_input_ids=torch.tensor([text])
        ).logits[0]
    return found


def runner_of(
    theirs: Any,
    ours: Ours,
    sounds: list[int],
    *,
    observer: Observer | None = None,
    block_size: int = 16,
    backend: str = "reference",
    alignment: Alignment | None = None,
) -> StepRunner[Any]:
    """Has the encodings of these sounds, by transformers' encoder; further ones it makes.
    alignment: which heads follow the sound."""
    blocks, slots = 2048 // block_size, 8
    heads = () if alignment is None else alignment.heads
    forward: Any
    if backend != "reference":
        own = replace(ours.cpu, backend=backend)
        forward = own.forward(block_size=block_size, num_blocks=blocks, threads=2)
        if heads:
            forward.shown = shown_heads(
                forward.stores._decoder.program, forward.decoder._decoder, ours.config, heads
            )
    else:
        shape = CacheShape.of(ours.config, block_size, torch.float32)
        cache = EncoderDecoderCache(ReferenceAttention(shape, blocks), ROWS)
        forward = EncoderDecoderForward(ours.decoder, cache, heads=heads)
    media = MediaEncodings(rows=8 * ROWS, row_bytes=1, load_bytes=1 << 20, sections=False)
    media.see_with(Hearing(ours.tower, lambda: None))
    media._rows = {name_of(sound): encoded(theirs, sound) for sound in sounds}
    bounds = SlotBounds(
        slots, blocks, block_size, ours.config.vocab_size, ROWS + TARGETS, encoder_rows=ROWS
    )
    return host_runner(
        forward, choose(1), Slots(bounds), observer=observer, media=media, alignment=alignment
    )
