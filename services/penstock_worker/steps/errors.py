"""Failures of a whole step, for which no slot is to blame."""

from __future__ import annotations


class StepLost(Exception):
    """A step can't be computed, and no slot is to blame. All steps that were started are lost with
    it."""


class OutOfDeviceMemory(StepLost):
    """The step needs more memory than the device has left. A smaller step may succeed."""


class DeviceLost(StepLost):
    """The device no longer works for this process, which must be restarted."""
