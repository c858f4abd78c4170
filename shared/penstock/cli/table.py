"""`penstock config-table`: the flags as Markdown, a table that is printed or lists in a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.cli.parser import Parser
from penstock.config.flags import as_list, as_table
from penstock.errors import InvalidRequest

BEGIN = "<!-- flags: begin (make format writes this) -->\n"
END = "<!-- flags: end -->\n"


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = "Prints the flags of `penstock serve` as a Markdown table."
    parser.add_argument(
        "--update", metavar="FILE", help="Write lists between the markers of this Markdown file."
    )
    parser.set_defaults(run=run_config_table)


def run_config_table(arguments: argparse.Namespace) -> int:
    """Prints the table, or updates a file that has the two marker lines."""
    if not arguments.update:
        print(as_table(), end="")
        return 0
    path = Path(arguments.update)
    old = path.read_text(encoding="utf-8")
    new = updated(old)
    if new != old:
        path.write_text(new, encoding="utf-8")
    return 0


def updated(text: str) -> str:
    """`text` with the present flags between the markers. Raises InvalidRequest without them."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise InvalidRequest(f"the file lacks the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return head + BEGIN + as_list() + END + tail
