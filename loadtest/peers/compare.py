"""Penstock beside vLLM and llama.cpp, in one run:
`python -m loadtest.peers.compare --help`."""

from __future__ import annotations

import sys

from loadtest.peers.server_report import SERVERS

if __name__ == "__main__":
    sys.exit(SERVERS.main())
