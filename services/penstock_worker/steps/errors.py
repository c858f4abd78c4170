"""Failures that are no slot's fault."""

from __future__ import annotations


class StepLost(Exception):
    """A step can't be computed, and no slot is to blame. What was begun is lost with it."""


class OutOfDeviceMemory(StepLost):
    """It takes more memory than the device has left. With less work in a step it would go on."""


class DeviceLost(StepLost):
    """The device does nothing any more for this process, which must be started again."""
