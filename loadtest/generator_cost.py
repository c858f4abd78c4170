"""What the load generator itself costs: `python -m loadtest.generator_cost`.

Flat out, a scripted server in a process of its own sends as fast as it can; paced, 256 streams get
a chunk each every 10 ms, as from a fast server. Chunks arrive one by one, not in large batches,
so that figure is the one to compare with a server's rate.
"""

from __future__ import annotations

import json
import subprocess
import sys

from penstock.bench.load.options import Length, LoadOptions
from penstock.bench.load.run import run
from penstock.process.machine import describe_machine

_CASES = {
    "flat out, 64 streams": ("0", 64, 512),
    "paced, 256 streams at 10 ms": ("0.01", 256, 768),
}


def measure(delay: str, streams: int, requests: int) -> dict[str, float]:
    """One case: chunks per second, and the generator's CPU time for each."""
    command = [sys.executable, "-m", "testing.scripted_server", "--chunk-delay", delay]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            options = LoadOptions(
                url=next(iter(server.stdout or ())).strip(),
                concurrency=streams,
                requests=requests,
                warmup=streams,
                output_tokens=Length.parse("256"),
            )
            report = run(options, progress=False)
        finally:
            server.terminate()
    summary = report.summary
    chunks = summary.output_tokens + streams * 256  # the warm-up's cost CPU time too
    return {
        "chunks_per_s": round(summary.output_tokens_per_s),
        "generator_cpu_us_per_chunk": round(report.generator_cpu_s / chunks * 1e6, 1),
        "errors": summary.failed,
    }


if __name__ == "__main__":
    cases = {name: measure(*case) for name, case in _CASES.items()}
    print(json.dumps({"machine": describe_machine(), "cases": cases}, indent=1))
