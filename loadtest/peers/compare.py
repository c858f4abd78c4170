"""Penstock beside vLLM and llama.cpp, in one run:
`python loadtest/peers/compare.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from loadtest.peers.server_report import SERVERS

if __name__ == "__main__":
    sys.exit(SERVERS.main())
