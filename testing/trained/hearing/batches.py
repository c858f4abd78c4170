"""Windows of recordings as a Whisper learns them: spectrograms, and what is to be written."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from penstock.media.log_mel import log_mel
from penstock.model.sound_facts import LogMel
from testing.trained.hearing.hub_folder import BINS, END, FRAMES, SECONDS, START, ids_of
from testing.trained.hearing.recordings import SpokenText, say
from testing.trained.hearing.synthesiser import DIGITS, RATE

MEL = LogMel(sampling_rate=RATE, bins=BINS, n_fft=400, hop=160, seconds=SECONDS, row_frames=2)
IGNORED = -100
SILENT, CUT = 0.06, 0.4
"""Shares of all windows: with nothing said; cut out of something longer."""
WORDS = list(DIGITS)


class Example(NamedTuple):
    """mel: [bins, frames] float16.  tokens: from the start to the end.  heard: [frames / 2], the
    digit that is said then, from 1; 0: none."""

    mel: np.ndarray
    tokens: list[int]
    heard: np.ndarray


class Examples:
    """So many windows with their tokens, made once."""

    def __init__(self, count: int, tokens: Tokenizer, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._tokens = tokens
        self._ids = ids_of(tokens)
        self._all = [self._made(rng) for _ in range(count)]

    def _made(self, rng: np.random.Generator) -> Example:
        if rng.random() < SILENT:
            samples = say(rng, SECONDS, words=0).samples
            return Example(_mel(samples), [self._ids[START], -1], np.zeros(FRAMES // 2, np.int64))
        begin = 0
        if rng.random() < CUT:
            recording = say(rng, 2 * SECONDS)
            segments = recording.segments()
            begin = max(0, segments[rng.integers(len(segments))][0].start - rng.integers(6400))
        else:
            recording = say(rng, SECONDS, words=int(rng.integers(1, 6)))
        samples = recording.samples[begin : begin + SECONDS * RATE]
        ids = self._written(recording, begin, begin + len(samples))
        return Example(_mel(samples), ids, _heard(recording, begin))

    def _written(self, recording: SpokenText, begin: int, end: int) -> list[int]:
        """Tokens of a window as Whisper writes it: of a segment that it cuts, only the beginning's
        time."""
        ids = [self._ids[each] for each in (START, "<|en|>", "<|transcribe|>")]
        for segment in recording.segments():
            first, last = segment[0].start, segment[-1].end
            if first < begin or first >= end:
                continue
            ids.append(self._time(first - begin))
            if last > end:
                break
            ids += self._tokens.encode("".join(f" {word.text}" for word in segment)).ids
            ids.append(self._time(last - begin))
        return [*ids, self._ids[END]]

    def _time(self, samples: int) -> int:
        return self._ids[f"<|{round(samples / RATE / 0.02) * 0.02:.2f}|>"]

    def batch(self, choose: np.random.Generator, size: int) -> dict[str, torch.Tensor]:
        """input_features, decoder_input_ids, labels; heard: for the encoder alone."""
        chosen = [self._all[at] for at in choose.integers(0, len(self._all), size)]
        longest = max(len(example.tokens) for example in chosen)
        given = torch.full((size, longest - 1), self._ids[END])
        wanted = torch.full((size, longest - 1), IGNORED)
        for row, example in enumerate(chosen):
            tokens = torch.tensor(example.tokens)
            given[row, : len(tokens) - 1] = tokens[:-1]
            wanted[row, : len(tokens) - 1] = tokens[1:]
        wanted[wanted == -1] = self._ids["<|nospeech|>"]
        mels = np.stack([example.mel for example in chosen]).astype(np.float32)
        return {
            "input_features": torch.from_numpy(mels),
            "decoder_input_ids": given,
            "labels": wanted,
            "heard": torch.from_numpy(np.stack([example.heard for example in chosen])),
        }


def _mel(samples: np.ndarray) -> np.ndarray:
    (mel,) = log_mel(MEL, samples)
    return mel.astype(np.float16)


def _heard(recording: SpokenText, begin: int) -> np.ndarray:
    found = np.zeros(FRAMES // 2, np.int64)
    for word in recording.words:
        start, end = ((each - begin) // 320 for each in (word.start, word.end))
        found[max(start, 0) : max(end, 0)] = 1 + WORDS.index(word.text)
    return found
