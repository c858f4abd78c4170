"""What every measurement shares: its command line, and what it writes."""

from __future__ import annotations

from loadtest.report.chart import chart, of_first
from loadtest.report.facts import ROOT, commit, machine_line
from loadtest.report.figures import distribution, percentile
from loadtest.report.files import Document, Flags, Measurement, SetupError, say
from loadtest.report.table import listed, sections, table, verdict
from penstock_bench.load.report import markdown_table

__all__ = [
    "ROOT",
    "Document",
    "Flags",
    "Measurement",
    "SetupError",
    "chart",
    "commit",
    "distribution",
    "listed",
    "machine_line",
    "markdown_table",
    "of_first",
    "percentile",
    "say",
    "sections",
    "table",
    "verdict",
]
