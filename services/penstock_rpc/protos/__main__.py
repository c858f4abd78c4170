"""`python -m penstock_rpc.protos` generates the modules from the .proto files of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def generate(out: Path) -> int:
    """Writes the modules and their type stubs below `out`, by the packages' names; returns the
    compiler's exit status."""
    from grpc_tools import protoc

    services = HERE.parents[1]
    included = Path(protoc.__file__).parent / "_proto"
    files = [str(file.relative_to(services)) for file in sorted(HERE.glob("*.proto"))]
    paths = [f"-I{services}", f"-I{included}"]
    status: int = protoc.main(["protoc", *paths, f"--python_out={out}", f"--pyi_out={out}", *files])
    return status


if __name__ == "__main__":
    sys.exit(generate(Path(__file__).resolve().parents[2]))
