"""Which policy a configuration means."""

from __future__ import annotations

from penstock.config.settings import SchedulerSettings
from penstock_engine.policies.fair import FairShare
from penstock_engine.policies.pace import StepPace
from penstock_engine.policies.policy import FirstCome
from penstock_engine.policies.priority import ByPriority
from penstock_engine.policies.tenants import Tenants


def make_policy(settings: SchedulerSettings, tenants: Tenants) -> FirstCome:
    """A fresh policy, with a queue of its own."""
    pace = StepPace(settings.max_step_slowdown)
    match settings.scheduling_policy:
        case "fair":
            return FairShare(tenants, settings.max_num_batched_tokens, pace)
        case "priority":
            return ByPriority(pace)
    return FirstCome(pace=pace)
