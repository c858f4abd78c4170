"""Writes the page of what is reckoned: `python -m loadtest.gpu.reckon [--print]`."""

from __future__ import annotations

import sys

from loadtest.gpu.reckon.page import PAGE, page


def main() -> int:
    if "--print" in sys.argv[1:]:
        print(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
