"""Penstock's library beside llama.cpp, OpenVINO GenAI, vLLM and transformers, in one run:
`python -m loadtest.peers.inprocess --help`."""

from __future__ import annotations

import sys

from loadtest.peers.library.report import LIBRARIES

if __name__ == "__main__":
    sys.exit(LIBRARIES.main())
