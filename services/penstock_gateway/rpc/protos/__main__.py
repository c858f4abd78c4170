"""`python -m penstock_gateway.rpc.protos` makes the modules beside the .proto files anew."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock_gateway.rpc.protos.generating import generate

if __name__ == "__main__":
    sys.exit(generate(Path(__file__).resolve().parents[3]))
