"""Writes the reference's table of clients: `python -m tests.system.clients.readme`."""

from __future__ import annotations

from loadtest.report.readme import replace_section
from tests.system.clients.installed import ROOT, table

if __name__ == "__main__":
    replace_section(ROOT / "docs/reference/clients.md", "clients", table())
