"""The commands: name, where it stands in the help, one line, and the function that gives a parser
its arguments. Nothing of a command is imported before it is known that it is the one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from penstock.cli.parser import Parser


@dataclass(frozen=True)
class Command:
    """place: as for `function_at`; the function fills a Parser, and sets `run`."""

    name: str
    group: str
    summary: str
    place: str

    def parser(self) -> Parser:
        """The command's own parser."""
        parser = Parser(prog=f"penstock {self.name}")
        function_at(self.place)(parser)
        return parser


def function_at(place: str) -> Callable[[Parser], None]:
    """place: `module:function`, the module below penstock.cli, or that of a package of its own,
    which nothing but this table names."""
    module, _, function = place.partition(":")
    name = module if module.startswith("penstock_") else f"penstock.cli.{module}"
    found: Callable[[Parser], None] = getattr(importlib.import_module(name), function)
    return found


SERVING = "Serve and use a model"
LOOKING = "Look at a system"
MEASURING = "Measure and look back"
PARTS = "Single processes, and building"

CONVERSION = "penstock_conversion.commands"
PLANNING = "penstock_planning.commands"

COMMANDS = (
    Command("serve", SERVING, "start and supervise a whole system on this machine", "serve:add"),
    Command("run", SERVING, "answer one prompt, and exit", "run:add"),
    Command("chat", SERVING, "talk with a model in the terminal", "chat:add"),
    Command("transcribe", SERVING, "the text of a recording", "transcribe:add"),
    Command("batch", SERVING, "answer a file of requests", "batch:add"),
    Command(
        "verify",
        SERVING,
        "say whether an answer is what its receipt says",
        "penstock_receipts.command:add",
    ),
    Command("pull", SERVING, "find or download a model, and prepare it", "models:add_pull"),
    Command("list", SERVING, "the models on this machine", "models:add_list"),
    Command("show", SERVING, "what a model is, and the memory it takes", "show:add"),
    Command("rm", SERVING, "remove a model from this machine", "models:add_rm"),
    Command(
        "quantize",
        SERVING,
        "write a model in fewer bits, as GGUF",
        f"{CONVERSION}.quantize:add",
    ),
    Command(
        "merge", SERVING, "fold an adapter (LoRA) into its base model", f"{CONVERSION}.merge:add"
    ),
    Command("backup", SERVING, "copy what a server has stored, while it runs", "backup:add"),
    Command("key", SERVING, "make an API key, and its entry for --api-keys", "keys:add"),
    Command("status", LOOKING, "say whether a system is ready, and its state", "status:add"),
    Command("top", LOOKING, "a live view of a running system", "top:add"),
    Command("health", LOOKING, "ask one process whether it is ready", "health:add"),
    Command("doctor", LOOKING, "say what this machine can do, and what is missing", "doctor:add"),
    Command("recommend", LOOKING, "say which models fit this machine", "recommend:add"),
    Command(
        "bench",
        MEASURING,
        "measure latency, throughput, or a server",
        "penstock_bench.command:add",
    ),
    Command("replay", MEASURING, "replay a recording's decisions", "replay:add"),
    Command("simulate", MEASURING, "run a trace in virtual time", f"{PLANNING}.simulate:add"),
    Command(
        "plan", MEASURING, "say how many engine cores hold an objective", f"{PLANNING}.plan:add"
    ),
    Command("fit-cost", MEASURING, "fit the simulator's step cost", f"{PLANNING}.fit_cost:add"),
    Command("gateway", PARTS, "run one gateway (HTTP front end)", "process_arguments:gateway"),
    Command("fork-server", PARTS, "fork gateways", "process_arguments:fork_server"),
    Command("batches", PARTS, "work through batches, without a port", "process_arguments:batches"),
    Command("grpc", PARTS, "run the process that answers gRPC", "process_arguments:grpc"),
    Command("engine", PARTS, "run one engine core (scheduler, KV)", "process_arguments:engine"),
    Command("worker", PARTS, "run one worker (model, KV tensors)", "process_arguments:worker"),
    Command(
        "ray-workers",
        PARTS,
        "run an engine core's workers on a Ray cluster",
        "process_arguments:ray_workers",
    ),
    Command("prepare", PARTS, "make a model's prepared folder", "process_arguments:prepare"),
    Command("curve-keys", PARTS, "make keys for processes on several hosts", "keys:add_curve_keys"),
    Command("config-table", PARTS, "print the reference table of all flags", "table:add"),
    Command("completion", PARTS, "print a shell's completion script", "completion:add"),
)

BY_NAME = {command.name: command for command in COMMANDS}

BENCH_KINDS = {"steps": ("what a step costs, for `penstock plan`", f"{PLANNING}.bench_steps:add")}
"""What other packages measure by `penstock bench`: by the kind, its line and its place."""
