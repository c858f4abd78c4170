"""Which adapters this gateway's requests use at the moment, by vLLM's name for it, as routers that
know of LoRA ask for it (Gateway API Inference Extension)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from penstock.metrics.families import Families
from penstock_gateway.models.backend import ModelBackend

NAME = "vllm:lora_requests_info"


def adapter_families(backend: ModelBackend, families: Families) -> Iterator[Metric]:
    """One sample, whose value is the time: of several, readers take the latest. None where the
    model takes no adapters."""
    welcome = backend.client.welcome
    if welcome is None or not welcome.max_lora_rank:
        return
    names = {each.file.digest: each.name for each in backend.client.adapters.present() if each.file}
    running: set[str] = set()
    waiting: set[str] = set()
    for request in backend.counts.with_adapters:
        name = names.get(request.adapter)
        if name is not None:
            started = request.entered_at is not None or request.first_token is not None
            (running if started else waiting).add(name)
    listed = (",".join(sorted(each)) for each in (running, waiting - running))
    yield families.gauges(
        NAME,
        "Adapters of this gateway's open requests; the value is the time.",
        ["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        {(str(welcome.max_loras), *listed): time.time()},
    )
