"""A model that is loaded already, and serves another session of the engine core."""

from __future__ import annotations

import msgspec
import torch

from penstock.protocol.from_worker import Ready
from penstock.protocol.to_worker import Setup
from penstock_worker.loading.loaded import Loaded
from penstock_worker.parallel.ranks import Ranks


def same_model(loaded: Loaded, setup: Setup) -> bool:
    """Returns whether the loaded model can serve this setup as it is."""
    return _without_session(setup) == _without_session(loaded.setup)


def _without_session(setup: Setup) -> Setup:
    """Returns the setup without what changes from session to session."""
    group = setup.group
    if group is not None:
        group = msgspec.structs.replace(group, rendezvous="", number=0)
    return msgspec.structs.replace(setup, version=0, served_name="", group=group, trial=False)


def ready_again(loaded: Loaded, ranks: Ranks) -> Ready:
    """Returns the Ready of a loaded model that joins another group. A rank that is new there may
    have less room for KV blocks; what this rank has beyond that stays unused. Raises GroupLost."""
    ready = loaded.ready
    if ranks.place.ranks == 1:
        return ready
    with torch.inference_mode():
        loaded.kernels.rehearse()  # As ranks do that are new there.
        blocks, host_blocks = ranks.least([ready.num_kv_blocks, ready.num_host_blocks])
        loaded.kernels.capture()
    return msgspec.structs.replace(ready, num_kv_blocks=blocks, num_host_blocks=host_blocks)
