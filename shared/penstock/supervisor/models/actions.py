"""What is to be done with models and their holders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PrepareModel:
    """Find out what the model is, and how large."""

    model: str


@dataclass(frozen=True)
class StartModel:
    model: str


@dataclass(frozen=True)
class StopModel:
    """End its processes: nobody has work for it."""

    model: str


@dataclass(frozen=True)
class GrantModel:
    holder: int
    model: str


@dataclass(frozen=True)
class ReclaimModel:
    holder: int
    model: str


Action = PrepareModel | StartModel | StopModel | GrantModel | ReclaimModel
