"""python -m testing.trained.hearing.train: trains the tiny model that hears.

transformers' own classes do it, on two cores, in minutes. First the encoder alone learns to tell
which digit is said when, with a head that is thrown away; then all of it learns to write. Says
every hundred steps how it goes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import WhisperForConditionalGeneration

from testing.trained.hearing import FOLDER
from testing.trained.hearing.batches import IGNORED, WORDS, Examples
from testing.trained.hearing.hub_folder import config, ids_of, save, tokenizer
from testing.trained.learning import learn


def learn_to_hear(
    model: WhisperForConditionalGeneration, examples: Examples, steps: int, size: int, rate: float
) -> None:
    """Trains the encoder with a head for each of its rows."""
    encoder = model.get_encoder()
    head = torch.nn.Linear(model.config.d_model, 1 + len(WORDS))
    choose = np.random.default_rng(3)

    def loss_of() -> torch.Tensor:
        batch = examples.batch(choose, size)
        rows = encoder(batch["input_features"]).last_hidden_state
        return cross_entropy(head(rows).flatten(0, 1), batch["heard"].flatten())

    learn("encoder", [*encoder.parameters(), *head.parameters()], loss_of, steps, rate)


def learn_to_write(
    model: WhisperForConditionalGeneration, examples: Examples, steps: int, size: int, rate: float
) -> None:
    """Trains all of it to write what was said, and when."""
    choose = np.random.default_rng(2)

    def loss_of() -> torch.Tensor:
        batch = examples.batch(choose, size)
        scores = model(
            input_features=batch["input_features"], decoder_input_ids=batch["decoder_input_ids"]
        ).logits
        return cross_entropy(scores.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)

    learn("all", list(model.parameters()), loss_of, steps, rate)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--folder", type=Path, default=FOLDER)
    flags.add_argument("--windows", type=int, default=1600, help="that are made")
    flags.add_argument("--encoder-steps", type=int, default=400)
    flags.add_argument("--steps", type=int, default=1000)
    flags.add_argument("--size", type=int, default=16, help="windows of a step")
    flags.add_argument("--rate", type=float, default=3e-3)
    flags.add_argument("--threads", type=int, default=1)
    given = flags.parse_args()
    torch.manual_seed(17)
    torch.set_num_threads(given.threads)
    tokens = tokenizer()
    examples = Examples(given.windows, tokens, seed=1)
    print(f"{given.windows} windows are made", flush=True)
    model = WhisperForConditionalGeneration(config(ids_of(tokens)))
    print(f"{sum(each.numel() for each in model.parameters()):,} parameters", flush=True)
    learn_to_hear(model, examples, given.encoder_steps, given.size, given.rate)
    learn_to_write(model, examples, given.steps, given.size, given.rate)
    save(model.to(torch.bfloat16), tokens, given.folder)


if __name__ == "__main__":
    main()
