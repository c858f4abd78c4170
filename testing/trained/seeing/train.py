"""python -m testing.trained.seeing.train: trains the tiny model that sees.

transformers' own classes do it, on two cores, in minutes. First the tower alone learns to tell
number, colour and shape, as towers are trained before they are given to a decoder; then all of it
learns to answer. Says every hundred steps how it goes. The checkpoint beside this was made by

    python -m testing.trained.seeing.train
    python -m testing.trained.seeing.train --begin-with testing/trained/tiny-seeing \\
        --first-picture 12000 --pictures 6000 --steps 900 --rate 0.001

in some ten minutes of one core's time.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import LlavaForConditionalGeneration

from testing.trained.learning import learn
from testing.trained.seeing import FOLDER
from testing.trained.seeing.batches import Album, Conversations, marks
from testing.trained.seeing.hub_folder import config, processor, save, tokenizer
from testing.trained.seeing.pictures import COLOURS, NUMBERS, SHAPES, SHOWN

CLASSES = (len(NUMBERS), len(COLOURS), len(SHAPES))
TOWER_SIZE = 64
"""Pictures of a step of the tower alone."""


def learn_to_tell(tower: torch.nn.Module, album: Album, steps: int, rate: float) -> None:
    """Trains the tower with a head that is thrown away: classes from the mean of the patches."""
    head = torch.nn.Linear(tower.config.hidden_size, sum(CLASSES))  # type: ignore[union-attr,arg-type]
    choose = random.Random(3)

    def loss_of() -> torch.Tensor:
        things = choose.choices(SHOWN, k=TOWER_SIZE)
        seen = tower(album.shown(choose, things)).last_hidden_state[:, 1:].mean(1)
        parts = zip(head(seen).split(CLASSES, 1), marks(things).T, strict=True)
        return torch.stack([cross_entropy(scores, classes) for scores, classes in parts]).sum()

    learn("tower", [*tower.parameters(), *head.parameters()], loss_of, steps, rate)


def learn_to_answer(
    model: torch.nn.Module, talks: Conversations, steps: int, size: int, rate: float
) -> None:
    """Trains all of it to continue conversations; only the answers count."""
    choose = random.Random(2)

    def loss_of() -> torch.Tensor:
        found: torch.Tensor = model(**talks.batch(choose, size)).loss
        return found

    learn("all", list(model.parameters()), loss_of, steps, rate)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--folder", type=Path, default=FOLDER)
    flags.add_argument("--tower-steps", type=int, default=2000)
    flags.add_argument("--steps", type=int, default=1500)
    flags.add_argument("--size", type=int, default=32, help="conversations of a step")
    flags.add_argument("--pictures", type=int, default=12_000, help="that are drawn")
    flags.add_argument("--rate", type=float, default=2e-3)
    flags.add_argument("--first-picture", type=int, default=0, help="others than another run's")
    flags.add_argument("--begin-with", type=Path, help="a folder whose model goes on to learn")
    given = flags.parse_args()
    torch.manual_seed(17)
    ours = processor(tokenizer())
    album = Album(given.pictures, ours, given.first_picture)
    if given.begin_with:
        model = LlavaForConditionalGeneration.from_pretrained(given.begin_with, dtype=torch.float32)
    else:
        model = LlavaForConditionalGeneration(config(ours.tokenizer))
        learn_to_tell(model.model.vision_tower, album, given.tower_steps, given.rate)
    learn_to_answer(model, Conversations(album, ours), given.steps, given.size, given.rate)
    save(model.to(torch.bfloat16), ours, given.folder)


if __name__ == "__main__":
    main()
