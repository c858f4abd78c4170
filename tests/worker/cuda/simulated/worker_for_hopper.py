"""Compiles for sm_90 what a worker launches.

`python -m tests.worker.cuda.simulated.worker_for_hopper [NAME…]`, of SETTINGS.

As tests/kernels/triton/compile_for_hopper, but of the launches that the worker itself makes, in the
shapes of Llama 3.1 8B: steps of every kind on the simulated GPU.  Not under TRITON_INTERPRET.
"""

from __future__ import annotations

import sys
from typing import Any

from loadtest.gpu.shapes import LLAMA_8B
from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock.protocol.to_worker import Copy, NewSequence, Plan, SlotWork
from testing.model_configs import varied
from tests.kernels.triton.compile_for_hopper import Compiler
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import Machine
from tests.worker.cuda.simulated.torch_cuda import simulated

LLAMA = varied(LLAMA_8B, num_layers=1)
ALL = TokenSampling(
    0,
    top_k=50,
    top_p=0.9,
    min_p=0.05,
    logprobs=20,
    prompt_logprobs=5,
    adjustments=LogitsAdjustments(presence=1.0, bias={1: 1.0}, bad_words=((5,),)),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "int8": {"quantization": "int8", "kv_cache_dtype": "fp8"},
    "int4": {"quantization": "int4"},
    "fp8": {"quantization": "fp8"},
    "batch-invariant": {"batch_invariant": True},
    "adapters": {"max_loras": 4, "max_lora_rank": 16, "lora_whole_matrices": True},
}


def steps(machine: Machine) -> None:
    """A prefill, a mixed step, decodes of one and of two, and copies."""
    wants = [TokenSampling(0, temperature=0.0), ALL]
    new = [NewSequence(n, [1] * 150, 150, 0, each, list(range(16))) for n, each in enumerate(wants)]
    copies = [Copy("out", 1, 0), Copy("in", 0, 2), Copy("device", 1, 3)]
    plans = [
        Plan(1, 0, [], new[:1], [SlotWork(0, 0, 150)], copies),
        Plan(2, 1, [], new[1:], [SlotWork(0, 150, 1), SlotWork(1, 0, 150)]),
        Plan(3, 2, [], [], [SlotWork(0, 151, 1), SlotWork(1, 150, 1)]),
        Plan(4, 3, [], [], [SlotWork(1, 151, 1)]),
    ]
    for plan in plans:
        errors = [each.error for each in machine.begin(plan).result().slots]
        if any(errors):
            raise RuntimeError(f"step {plan.step}: {errors}")


def main(names: list[str]) -> int:
    compiler = Compiler()
    for name in names or SETTINGS:
        changes = SETTINGS[name]
        print(name, flush=True)
        with simulated(Device(80 << 30, computes=False), compiler.run) as device:
            sizes = {"block_size": 16, "max_num_batched_tokens": 512, "max_model_len": 8192}
            machine = Machine(device, LLAMA, **sizes, host_kv_bytes=8 << 20, **changes)
            steps(machine)
            machine.runner.close()
    for line in compiler.failed:
        print("FAILED", line)
    return 1 if compiler.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
