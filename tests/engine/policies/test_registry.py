"""A policy is a module and a name among the settings' choices."""

from __future__ import annotations

import typing

import pytest

from penstock.config.settings import SchedulerSettings, SchedulingPolicy
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
