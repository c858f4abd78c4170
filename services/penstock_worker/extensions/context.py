"""What a worker extension is made with."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_worker.loading.loaded import Loaded


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What an extension may know of one rank, for one loaded model.

    rank, ranks: this one, of how many.  served_name: of the model.  model_dir: its prepared folder.
    device: what computes, as in Ready.  loaded: the model itself, of which nothing is promised to
    stay as it is from one version to the next.
    """

    rank: int
    ranks: int
    served_name: str
    model_dir: str
    device: str
    loaded: Loaded
