"""Columns of the report's tables, by their titles, and what is said below them."""

PARTS = {
    "part": "{name}",
    "ended": "{status}",
    "seconds": "{seconds:.0f}",
    "processor seconds": "{computed}",
    "why": "{why}",
}
TARGETS = {"what": "{name}", "aimed at": "{aim}", "measured": "{measured}", "": "{verdict}"}
LIMITS = {"": "{name}", "bytes, or side": "{size:,}", "rate": "{per_s:,.1f} {unit}"}
KERNELS = {
    "kernel": "{op}, {shape}",
    "µs": "{us:,.1f}{star}",
    "of the limit": "{share}",
    "torch, µs": "{torch_us}",
    "times torch": "{times_torch}",
    "torch's": "{torch}",
}
KERNELS_BELOW = (
    "\nThe limit: bytes at the bandwidth of reading or copying, whichever is higher, or operations "
    "at the matrix rate. *: with the host's time to launch it.\n"
)
DECODE = {
    "decode": "{model}, {mode}",
    "batch": "{batch}",
    "context": "{context:,}",
    "ms a step": "{ms:.2f}",
    "tokens/s": "{rate:,.0f}",
    "of the memory limit": "{share}",
}
PREFILL = {
    "prefill": "{model}, {mode}",
    "prompts": "{sequences} x {length:,}",
    "tokens/s": "{rate:,.0f}",
    "TFLOP/s": "{tflops:,.1f}",
    "of the matrix limit": "{share}",
}
IDLE = {
    "profiled": "{model}, batch {batch}{where}",
    "GPU busy, ms a step": "{busy_ms:.3f}",
    "step without profiler, ms": "{step_ms:.3f}",
    "idle in all": "{idle}",
    "idle between steps, at most": "{idle_between}",
}
STEPS = {
    "a step's kernels": "{model}, {mode}, {batch} at {context:,}",
    "kernel": "{name}",
    "calls": "{calls:,.0f}",
    "ms a step": "{ms:.3f}",
    "of the step": "{share}",
}
COUNTERS = {
    "counted": "{kernel}",
    "took": "{duration}",
    "memory": "{memory}",
    "DRAM": "{dram}",
    "compute": "{compute}",
    "instructions": "{instructions}",
    "issued by a scheduler a clock": "{issued}",
    "registers": "{registers}",
    "occupancy": "{occupancy}",
}
PEER = {
    "torch, cuBLAS, SDPA": "{model}{star}",
    "batch": "{batch}",
    "context": "{context:,}",
    "ms a step": "{ms:.2f}",
    "of the memory limit": "{share}",
    "Penstock's worker, ms": "{ours_ms}",
    "Penstock is faster by": "{faster}",
}
PEER_BELOW = (
    "\nWithout rotation, paging and sampling, which the worker's step has. The worker's is the one "
    "of the\nnearest context. *: not from a CUDA graph.\n"
)
MIXED = {
    "prompts beside decodes": "{model}, {mode}",
    "decodes": "{decodes}",
    "chunk": "{chunk}",
    "graph's rows": "{graph_rows}",
    "ms a step": "{ms:.2f}",
    "tokens/s": "{rate:,.0f}",
    "of the limit": "{share}",
    "faster than launched, by": "{faster}",
}
STORED = {
    "": "{what}",
    "blocks": "{blocks:,}",
    "bytes": "{bytes:,}",
    "GB/s": "{gb_per_s:,.2f}",
    "as before": "{as_before}",
}
RUNS = {
    "requests at once": "{model}, {system}",
    "requests": "{requests}",
    "seconds": "{seconds:.1f}",
    "output tokens/s": "{output_rate:,.0f}",
    "all tokens/s": "{all_rate:,.0f}",
}
BITS = {
    "rows with the same bits": "{product}, {shape}",
    "that agree": "{agree}",
}
BITS_BELOW = (
    "\nLibrary: torch's own product; numbers of rows in parentheses agree with one another in all "
    "rows that\nthey have in common. Tiles: ours, rows x columns.\n"
)
PUBLIC = """
Public figures of Llama 3.1 8B, measured by others. They are **not like for like**: cards,
precision, lengths and arrivals differ, so they show of which size a rate is, not who is faster.

| program | card | weights | tokens in and out | output tokens/s |
| --- | --- | --- | --- | ---: |
| NVIDIA NIM | GH200 | bfloat16 | 1,000 and 1,000, 250 at once | 7,152 |
| SGLang | H100 | bfloat16 | ShareGPT, offline | 16,215 |
| vLLM | H100 | bfloat16 | ShareGPT, offline | 12,553 |
| TensorRT-LLM | H200 | FP8 | 1,000 and 1,000 | 17,744 |

vLLM's batch-invariant mode costs 22 % (RTX 4090 D) to 31 % (H20) of the tokens/s, with Qwen3-1.7B.
"""
UNFINISHED = "\nRuns of {names} were cut short and give no rate.\n"
ENGINE_CORE = {
    "engine core": "{model}, {requests} requests",
    "steps": "{steps:,.0f}",
    "step, ms": "{step_ms:.2f}",
    "plan, ms": "{plan_ms:.3f}",
    "apply, ms": "{apply_ms:.3f}",
    "plan and apply": "{own}",
    "not hidden, at most": "{unhidden}",
}
ENGINE_CORE_BELOW = (
    "\nPlan and apply: the engine core's own time, against a step's. Not hidden: what a step "
    "took beyond the\nworker's computing (the way there and back included), since the next "
    "step is sent before the last is done.\n"
)
