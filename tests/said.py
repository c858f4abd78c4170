"""What was logged, with its fields."""

from __future__ import annotations

import pytest

from penstock.process.logs import _FIELDS


def said(caplog: pytest.LogCaptureFixture) -> str:
    """A line for each event."""
    lines = []
    for record in caplog.records:
        fields = vars(record).get(_FIELDS, {})
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        lines.append(f"{record.getMessage()} {shown}")
    return "\n".join(lines)
