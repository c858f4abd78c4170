"""Arguments of the commands that are one process of the system."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from penstock.cli.model_impl import add_model_impl
from penstock.cli.parser import Parser
from penstock.config import flags

BY_SUPERVISOR = "Given by the supervisor"
"""The group of arguments that a parent process gives, and people don't."""


def gateway(parser: Parser) -> None:
    """`penstock gateway`."""
    parser.description = (
        "Runs one gateway, which connects to engine cores and answers HTTP requests."
    )
    parser.add_argument(
        "--engine-endpoint",
        required=True,
        metavar="ENDPOINTS",
        help="The engines' front-end sides, with commas: tcp://HOST:PORT, ipc://PATH, or "
        "dns://NAME:PORT for every address of a name. Of several models each has the model's name "
        "in front: NAME=tcp://HOST:PORT.",
    )
    _models_socket(parser)
    parser.add_argument("--index", type=int, default=0, metavar="N", help="Number, for its name.")
    parser.add_argument("--fd", type=int, metavar="FD", help="A bound socket to accept from.")
    _front_end(parser, "gateway")


def fork_server(parser: Parser) -> None:
    """`penstock fork-server`."""
    parser.description = "Imports what gateways need and forks them."
    parser.add_argument(
        "--fd", type=int, required=True, metavar="FD", help="Socket on which forks are asked for."
    )
    parser.add_argument(
        "--model-dirs",
        metavar="FILE",
        help="Names the prepared folders of models whose tokenizers they need, one a line.",
    )
    flags.add_settings(parser, flags.LOG)
    _supervision(parser)
    parser.set_defaults(run=_child("fork-server"))


def batches(parser: Parser) -> None:
    """`penstock batches`."""
    parser.description = (
        "Works through the batches in --data-dir: a gateway without a port. One is enough; "
        "several share the work."
    )
    _engine_endpoints(parser)
    _front_end(parser, "batches")


def grpc(parser: Parser) -> None:
    """`penstock grpc`."""
    parser.description = "Answers gRPC at --grpc-port."
    _engine_endpoints(parser)
    parser.add_argument("--ready-file", metavar="FILE", help="Made when it is first ready.")
    _front_end(parser, "grpc")


def engine(parser: Parser) -> None:
    """`penstock engine`."""
    parser.description = "Runs one engine core, to which front ends and workers connect."
    parser.add_argument(
        "--model-dir", required=True, metavar="FOLDER", help="Prepared folder: penstock prepare."
    )
    parser.add_argument(
        "--frontend-endpoint", required=True, metavar="ENDPOINT", help="Where front ends connect."
    )
    parser.add_argument(
        "--worker-endpoint", required=True, metavar="ENDPOINT", help="Where workers connect."
    )
    flags.add_settings(parser, flags.ENGINE, flags.SHUTDOWN, flags.LOG)
    supervision = _supervision(parser, indexed=True)
    supervision.add_argument(
        "--adapters-file",
        metavar="FILE",
        help="Where to note what the adapters of the settings were, so that they are the same when "
        "this process is started again.",
    )
    supervision.add_argument(
        "--sleep-file",
        metavar="FILE",
        help="Where to note that the model sleeps, so that it still does when this process is "
        "started again.",
    )
    supervision.add_argument(
        "--weights-file",
        metavar="FILE",
        help="Where to note which weights the model was given since the start, so that it still "
        "has them when this process is started again.",
    )
    parser.set_defaults(run=_child("engine"))


def worker(parser: Parser) -> None:
    """`penstock worker`."""
    parser.description = "Runs one worker, which connects to an engine core and computes its steps."
    parser.add_argument(
        "--engine-endpoint", required=True, metavar="ENDPOINT", help="The engine's worker side."
    )
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="Rank in its group.")
    parser.add_argument(
        "--rank-host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="Address at which the other ranks of its model reach it, by plain TCP: keep it to a "
        "private network. Default: %(default)s.",
    )
    parser.add_argument(
        "--model-dir",
        metavar="FOLDER",
        help="This worker's own prepared folder; default: the engine core's, by the same path.",
    )
    flags.add_settings(parser, flags.TRANSPORT, *flags.WORKER_METRICS, flags.LOG)
    _supervision(parser, indexed=True)
    parser.set_defaults(run=_child("worker"))


def ray_workers(parser: Parser) -> None:
    """`penstock ray-workers`."""
    parser.description = (
        "Runs the ranks of one engine core as actors of a Ray cluster (RAY_ADDRESS; default: this "
        "machine's), and restarts those that die."
    )
    parser.add_argument(
        "--engine-endpoint", required=True, metavar="ENDPOINT", help="The engine's worker side."
    )
    parser.add_argument(
        "--model-dir",
        required=True,
        metavar="FOLDER",
        help="The engine core's prepared folder; a node that lacks it prepares the model itself.",
    )
    flags.add_settings(parser, flags.ENGINE, flags.LOG)
    _supervision(parser, indexed=True)
    parser.add_argument("--ready-file", metavar="FILE", help="Made when the system is ready.")
    parser.set_defaults(run=_child("ray-workers"))


def prepare(parser: Parser) -> None:
    """`penstock prepare`."""
    parser.description = (
        "Finds or downloads a model and writes what every process reads of it. Prints the "
        "folder's path."
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    parser.add_argument(
        "--copy-weights",
        action="store_true",
        help="Copy weights that lie elsewhere into --cache-dir, for containers or other machines "
        "that see that folder.",
    )
    parser.add_argument(
        "--link",
        metavar="PATH",
        help="A symbolic link to the prepared folder.",
    )
    add_model_impl(parser)
    flags.add_settings(parser, flags.LOG)
    _supervision(parser)
    parser.set_defaults(run=_child("prepare"))


def _engine_endpoints(parser: Parser) -> None:
    parser.add_argument(
        "--engine-endpoint",
        required=True,
        metavar="ENDPOINTS",
        help="The engines' front-end sides, as for `penstock gateway`.",
    )
    _models_socket(parser)


def _front_end(parser: Parser, process: str) -> None:
    """What gateways have in common."""
    flags.add_settings(
        parser,
        flags.GATEWAYS,
        flags.GATEWAY,
        flags.MODELS,
        flags.STORAGE,
        flags.MEDIA,
        *flags.ADAPTERS,
        flags.TRANSPORT,
        flags.LOG,
    )
    _supervision(parser)
    parser.set_defaults(run=_child(process))


def _models_socket(parser: Parser) -> None:
    parser.add_argument(
        "--models-socket",
        metavar="FILE",
        help="Socket of a supervisor that starts and ends models.",
    )


def _supervision(parser: Parser, *, indexed: bool = False) -> argparse._ArgumentGroup:
    group = parser.add_argument_group(BY_SUPERVISOR)
    group.add_argument(
        "--supervised-by", type=int, metavar="PID", help="Leave when this parent is gone."
    )
    if indexed:
        group.add_argument("--index", type=int, metavar="N", help="Number, for its name.")
        group.add_argument("--of", metavar="MODEL", help="The model, for its name.")
    group.add_argument(
        "--failure-file", metavar="FILE", help="Where to write why this process failed."
    )
    return group


def _child(role: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        from penstock.cli.processes import run_child

        return run_child(role, arguments)

    return run
