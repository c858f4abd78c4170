"""Writes the page of estimates for experts in the host's memory beside a card.

python -m loadtest.two_places           # loadtest/results/two_places_estimate.md
python -m loadtest.two_places --print
"""

from __future__ import annotations

import sys

from loadtest.report.files import RESULTS
from loadtest.two_places.page import text

PAGE = RESULTS / "two_places_estimate.md"


def main() -> int:
    """Returns 0."""
    if "--print" in sys.argv[1:]:
        print(text(), end="")
    else:
        PAGE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
