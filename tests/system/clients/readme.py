"""Writes the reference's table of clients: `python -m tests.system.clients.readme`."""

from __future__ import annotations

import re

from tests.system.clients.installed import ROOT, table

PAGE = ROOT / "docs/reference/clients.md"
SECTION = re.compile(r"(<!-- clients: begin[^>]*-->).*?(<!-- clients: end -->)", re.DOTALL)


def with_table(page: str, text: str) -> str:
    """The page with this text between its two comments. Raises ValueError without them."""
    changed, count = SECTION.subn(lambda found: f"{found[1]}\n\n{text.strip()}\n\n{found[2]}", page)
    if not count:
        raise ValueError(f"{PAGE} has no lines `clients: begin` and `clients: end`")
    return changed


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), table()))
