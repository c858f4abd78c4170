"""What training has in common, whatever is trained."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def learn(
    name: str,
    parameters: list[torch.nn.Parameter],
    loss_of: Callable[[], torch.Tensor],
    steps: int,
    rate: float,
) -> None:
    """One cycle of the learning rate, `rate` at most. Says every hundred steps how it goes."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, max(steps, 2), pct_start=0.1)
    begun, recent = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        recent += float(loss.detach())
        if step % 100 == 0:
            seconds = time.monotonic() - begun
            print(f"{name}, step {step}: loss {recent / 100:.4f}, {seconds:.0f} s", flush=True)
            recent = 0.0
