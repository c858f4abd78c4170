"""Penstock's library beside llama.cpp, OpenVINO GenAI, vLLM and transformers, in one run:
`python loadtest/peers/inprocess.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from loadtest.peers.library.report import LIBRARIES

if __name__ == "__main__":
    sys.exit(LIBRARIES.main())
