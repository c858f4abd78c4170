"""Writes the page of estimates: `python -m loadtest.gpu.estimate [--print]`."""

from __future__ import annotations

import sys

from loadtest.gpu.estimate.page import PAGE, page


def main() -> int:
    if "--print" in sys.argv[1:]:
        print(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
