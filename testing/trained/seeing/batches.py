"""What a step of training is made of: pictures, and conversations about them, as tensors."""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch

from testing.trained.seeing.hub_folder import TINY
from testing.trained.seeing.pictures import COLOURS, SHAPES, SHOWN, Things, draw
from testing.trained.seeing.talk import Turn, about_one, about_two

IGNORED = -100
"""A label that counts for nothing: no answer of the model's."""
SIDES = (40, 260)
"""Pixels of the pictures that are drawn."""
TWO = 0.15
"""The share of the steps that are about two pictures at a time."""


class Album:
    """Pictures that were drawn once, and are shown turned and mirrored in all eight ways."""

    def __init__(self, size: int, ours: Any, first: int = 0, processes: int = 2) -> None:
        """first: the seed of the first picture, of so many."""
        choose = random.Random(1 + first)
        things = [SHOWN[number % len(SHOWN)] for number in range(size)]
        sizes = [(choose.randint(*SIDES), choose.randint(*SIDES)) for _ in range(size)]
        with ProcessPoolExecutor(processes) as pool:
            drawn = pool.map(_pixels, things, range(first, first + size), sizes, chunksize=256)
            self._pixels = torch.from_numpy(np.stack(list(drawn)))
        self._of: dict[Things, list[int]] = {}
        for number, each in enumerate(things):
            self._of.setdefault(each, []).append(number)
        pictures = ours.image_processor
        self._mean = torch.tensor(pictures.image_mean).view(1, 3, 1, 1)
        self._std = torch.tensor(pictures.image_std).view(1, 3, 1, 1)

    def shown(self, choose: random.Random, things: list[Things]) -> torch.Tensor:
        """Returns one picture of each, float32 [pictures, 3, side, side], normalised."""
        pixels = torch.stack([self._turned(choose, choose.choice(self._of[t])) for t in things])
        return (pixels / 255 - self._mean) / self._std

    def _turned(self, choose: random.Random, number: int) -> torch.Tensor:
        turned = torch.rot90(self._pixels[number], choose.randrange(4), (1, 2))
        return turned.flip(1) if choose.random() < 0.5 else turned


def _pixels(things: Things, seed: int, size: tuple[int, int]) -> np.ndarray:
    """The picture as the processor resizes it, without its normalisation."""
    picture = draw(things, seed, *size).resize((TINY.side, TINY.side), 3)
    return np.asarray(picture).transpose(2, 0, 1)


def marks(things: list[Things]) -> torch.Tensor:
    """Number, colour and shape as classes, int64 [pictures, 3]."""
    names = list(COLOURS)
    return torch.tensor(
        [(t.count - 1, names.index(t.colour), SHAPES.index(t.shape)) for t in things]
    )


class Conversations:
    """Conversations as the model takes them, each sampled anew."""

    def __init__(self, album: Album, ours: Any) -> None:
        self._album = album
        self._tokens = ours.tokenizer
        self._images = [ours.tokenizer.convert_tokens_to_ids("<image>")] * TINY.rows
        self._ids: dict[str, list[int]] = {}

    def batch(self, choose: random.Random, size: int) -> dict[str, torch.Tensor]:
        """Returns what the model's forward takes."""
        two = choose.random() < TWO
        made = about_two if two else about_one
        talks = [made(choose, SHOWN) for _ in range(size // (1 + two))]
        rows = [self._row(talk) for talk in talks]
        longest = max(len(ids) for ids, _ in rows)
        lengths = torch.tensor([[len(ids)] for ids, _ in rows])
        pad = self._tokens.pad_token_id
        shown = [things for talk in talks for turn in talk for things in turn.shown]
        return {
            "input_ids": _padded([ids for ids, _ in rows], longest, pad),
            "labels": _padded([labels for _, labels in rows], longest, IGNORED),
            "attention_mask": (torch.arange(longest) < lengths).int(),
            "pixel_values": self._album.shown(choose, shown),
        }

    def _row(self, talk: list[Turn]) -> tuple[list[int], list[int]]:
        """(ids, labels) of a conversation, as the template writes it."""
        ids, labels = [self._tokens.bos_token_id], [IGNORED]

        def add(more: list[int], *, answer: bool = False) -> None:
            ids.extend(more)
            labels.extend(more if answer else [IGNORED] * len(more))

        for turn in talk:
            images = self._images * len(turn.shown)
            before, behind = (images, []) if turn.first else ([], images)
            add([*self._encode("<|user|>"), *before, *self._encode(turn.question), *behind])
            add(self._encode("<|assistant|>"))
            add([*self._encode(turn.answer), self._tokens.eos_token_id], answer=True)
        return ids, labels

    def _encode(self, text: str) -> list[int]:
        if text not in self._ids:
            self._ids[text] = self._tokens.encode(text, add_special_tokens=False)
        return self._ids[text]


def _padded(rows: list[list[int]], longest: int, by: int) -> torch.Tensor:
    return torch.tensor([row + [by] * (longest - len(row)) for row in rows])
