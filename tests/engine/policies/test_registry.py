"""A policy is a module and a name among the settings' choices."""

from __future__ import annotations

import typing

import pytest

from penstock.config.settings import (
    EngineConfig,
    GatewayConfig,
    SchedulerSettings,
    SchedulingPolicy,
    ServeConfig,
)
from penstock_engine.policies.policy import Policy
from penstock_engine.policies.registry import known_policies, make_policy
from penstock_engine.policies.tenants import Tenants

CHOICES = typing.get_args(SchedulingPolicy)


def test_the_choices_are_the_policies_that_there_are() -> None:
    assert sorted(known_policies()) == sorted(CHOICES)


@pytest.mark.parametrize("name", CHOICES)
def test_each_choice_makes_its_policy_with_a_queue_of_its_own(name: SchedulingPolicy) -> None:
    settings = SchedulerSettings(scheduling_policy=name)
    one, other = make_policy(settings, Tenants()), make_policy(settings, Tenants())
    assert isinstance(one, Policy)
    assert one.name == name
    assert one.queue is not other.queue


def policy_of(chosen: str, api_keys: str | None) -> str:
    """The name of the policy that an engine core of such a server has."""
    config = ServeConfig(
        engine=EngineConfig(scheduler=SchedulerSettings(scheduling_policy=chosen)),
        gateway=GatewayConfig(api_keys=api_keys),
    )
    return make_policy(config.core.scheduler, Tenants()).name


def test_tenants_of_a_file_of_keys_have_fair_shares_unless_it_is_said_otherwise() -> None:
    assert SchedulerSettings().scheduling_policy == "auto"
    assert policy_of("auto", "keys.yaml") == "fair"
    assert policy_of("auto", None) == "fcfs"
    for chosen in CHOICES:
        assert policy_of(chosen, "keys.yaml") == chosen
