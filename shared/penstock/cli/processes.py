"""The commands that are one process of the system: gateway, fork-server, batches, grpc, engine,
worker, ray-workers, prepare.

With `replay` the only module of `penstock` that imports the services, each only in its own process.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from penstock.config.flags import resolve
from penstock.errors import InvalidRequest, ModelNotFound, StartupError, UnsupportedModel
from penstock.net.listener import check_installed
from penstock.process import logs
from penstock.process.children import die_with_parent, set_title
from penstock.process.memory import is_memory_shortage
from penstock.process.start_phases import START, SUFFIX
from penstock.process.uncollected import uncollected
from penstock.supervisor.restarts import FINAL_STARTUP_FAILURE, OUT_OF_MEMORY

if TYPE_CHECKING:
    from penstock.model.prepared_model import PreparedModel
    from penstock.prepare.describe import ExpertBytes
    from penstock.recommend.fits import Machine

log = logs.get(__name__)

FINAL = (StartupError, ModelNotFound, UnsupportedModel, InvalidRequest)
"""What a restart doesn't fix."""


def run_child(role: str, arguments: argparse.Namespace) -> int:
    """Runs the process `role`; returns its exit code.

    One of the FINAL errors means exit code 78, with the reason in --failure-file for the
    supervisor; without a supervisor it is raised, for a person to read. A supervised worker
    doesn't return.
    """
    code = _run_child(role, arguments)
    if role == "worker" and arguments.supervised_by is not None:
        leave(code)
    return code


class OwnRole:
    """What a process that the supervisor has forked ahead does: it becomes one of these."""

    def imports(self, role: str) -> None:
        """Imports what the role needs."""
        with suppress(Exception):
            _IMPORTS[role]()

    def run(self, words: Sequence[str]) -> NoReturn:
        """Runs the command to the end of this process."""
        from penstock.cli.main import main

        code = 1
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            leave(code)


def leave(code: int) -> NoReturn:
    """Ends the process as Python does, but for taking apart what has been imported: of torch's
    modules and classes that is 0.16 s, and the kernel frees all of it at once."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def _run_child(role: str, arguments: argparse.Namespace) -> int:
    title = _title(role, arguments)
    set_title(title)
    if arguments.supervised_by is not None:
        die_with_parent(arguments.supervised_by)
        START.report_to(Path(arguments.failure_file).with_suffix(SUFFIX))
    try:
        said = resolve(arguments).log
        logs.setup(title, level=said.log_level, form=said.log_format)
        return _BODIES[role](arguments)
    except FINAL as error:
        if arguments.failure_file is None:
            raise
        _say_why(arguments.failure_file, str(error))
        return FINAL_STARTUP_FAILURE
    except Exception as error:
        log.error("failed", exception=True)
        if arguments.failure_file is not None:
            _say_why(arguments.failure_file, f"{type(error).__name__}: {error}")
        return OUT_OF_MEMORY if is_memory_shortage(error) else 1


def _say_why(failure_file: str, reason: str) -> None:
    """Tells the supervisor. Where there is no room for it, the log has it alone."""
    try:
        Path(failure_file).write_text(reason, encoding="utf-8")
    except OSError as error:
        log.error("failed", reason=reason, untold=error.strerror)


def run_doctor(arguments: argparse.Namespace) -> int:
    """Prints what a worker would find on this machine; 1 when something is missing."""
    import msgspec

    from penstock.cli.model_impl import overrides_given
    from penstock_worker.machine.doctor import examine, examine_started, show

    look = examine_started if arguments.start else examine
    findings = look(
        arguments.model,
        arguments.model_impl,
        language_model_only=arguments.language_model_only,
        mmproj=arguments.mmproj,
        overrides=overrides_given(arguments),
    )
    text = msgspec.json.encode(findings).decode() if arguments.json else show(findings)
    print(text, flush=True)
    return 0 if all(finding.ok for finding in findings) else 1


def loading(model: PreparedModel) -> tuple[int | None, str | None]:
    """Returns what the weights take in memory on a CPU, bytes, or None if that is unknown; and why
    a worker won't load them, empty if it will, or None where no worker can be imported. Reads their
    headers."""
    try:
        from penstock_worker.machine.torch_import import import_torch

        import_torch()
        from penstock_worker.loading.tensors import cpu_bytes, refusal
    except (ImportError, OSError):  # OSError: torch is there, and a library of its isn't.
        return None, None
    refused = refusal(model)
    return (None if refused else cpu_bytes(model)), refused


def expert_bytes(model: PreparedModel) -> ExpertBytes | None:
    """Returns what a model's routed experts take; None if that is unknown, as where no worker can
    be imported, or if it has none. Reads headers. Raises UnsupportedModel for a broken file."""
    try:
        from penstock_worker.machine.torch_import import import_torch

        import_torch()
        from penstock_worker.loading.tensors import expert_bytes
    except (ImportError, OSError):  # OSError: as above.
        return None
    return expert_bytes(model)


def this_machine() -> Machine:
    """What of this machine matters to a model; takes about a second."""
    from penstock_worker.machine.for_models import this_machine

    return this_machine()


def _title(role: str, arguments: argparse.Namespace) -> str:
    number = getattr(arguments, "index", None)
    if role == "worker":
        number = arguments.rank if number is None else number
    title = role if number is None else f"{role} {number}"
    model = getattr(arguments, "of", None)
    return title if model is None else f"{title} of {model}"


def _import_gateway() -> None:
    # pydantic would else go through the metadata of every package that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    with uncollected():
        import penstock_gateway.process  # noqa: F401


def _import_fork_server() -> None:
    _import_gateway()
    with uncollected():
        from penstock_gateway.process import make_ahead

        with suppress(Exception):  # The gateway that can't be made says why.
            make_ahead()


def _import_engine() -> None:
    with uncollected():
        import penstock_engine.process  # noqa: F401


def _import_worker() -> None:
    from penstock_worker.process import preload

    preload()


_IMPORTS: dict[str, Callable[[], None]] = {
    "fork-server": _import_fork_server,
    "engine": _import_engine,
    "worker": _import_worker,
}


def _gateway(arguments: argparse.Namespace) -> int:
    _import_gateway()
    from penstock_gateway.process import main

    START.passed("imports")
    config = resolve(arguments)
    main(
        arguments.engine_endpoint,
        config.gateway,
        arguments.index,
        arguments.fd,
        transport=config.engine.transport,
        media=config.engine.media,
        adapter_folder=config.engine.lora.lora_allowed_folder,
        cache_dir=config.engine.model.cache_dir,
        gateways=config.doors,
        storage=config.storage,
        models=config.models,
        models_socket=arguments.models_socket,
    )
    return 0


def _fork_server(arguments: argparse.Namespace) -> int:
    _import_fork_server()
    from penstock.supervisor.fork_server import serve
    from penstock.text.read_ahead import ListedModels

    START.passed("imports")
    models = ListedModels(Path(arguments.model_dirs or os.devnull))
    models.read()
    START.passed("tokenizer")
    START.done()
    serve(arguments.fd, OwnRole(), models.read)
    return 0


def _batches(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    with uncollected():
        from penstock_gateway.batches.process import main

    main(arguments.engine_endpoint, resolve(arguments), arguments.models_socket)
    return 0


def _grpc(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    check_installed()
    with uncollected():
        from penstock_rpc.process import main

    ready = arguments.ready_file
    main(
        arguments.engine_endpoint,
        resolve(arguments),
        None if ready is None else Path(ready),
        arguments.models_socket,
    )
    return 0


def _engine(arguments: argparse.Namespace) -> int:
    _import_engine()
    from penstock_engine.process import main

    START.passed("imports")
    config = resolve(arguments)
    main(
        config.core,
        arguments.model_dir,
        arguments.frontend_endpoint,
        arguments.worker_endpoint,
        shutdown_timeout=config.gateway.shutdown_timeout,
        adapters_file=arguments.adapters_file,
        sleep_file=arguments.sleep_file,
        weights_file=arguments.weights_file,
    )
    return 0


def _worker(arguments: argparse.Namespace) -> int:
    from penstock_worker.process import main

    engine = resolve(arguments).engine
    main(
        arguments.engine_endpoint,
        arguments.rank,
        engine.transport,
        metrics=engine.metrics,
        model_dir=arguments.model_dir,
        rank_host=arguments.rank_host,
    )
    return 0


def _ray_workers(arguments: argparse.Namespace) -> int:
    from penstock_ray.driver import Wanted, main

    engine = resolve(arguments).engine
    ready_file = arguments.ready_file
    main(
        Wanted(
            engine,
            endpoint=arguments.engine_endpoint,
            model_dir=arguments.model_dir,
            was_ready=Path(ready_file).exists if ready_file is not None else lambda: False,
        )
    )
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    if not arguments.model:
        raise InvalidRequest("MODEL is empty")
    from penstock.cli.model_impl import overrides_given
    from penstock.prepare import load_manifest, prepare
    from penstock.prepare.carry import link_to
    from penstock.prepare.describe import computed_by

    folder = prepare(
        arguments.model,
        cache_dir=arguments.cache_dir,
        progress=log.info,
        copy_weights=arguments.copy_weights,
        model_impl=arguments.model_impl,
        language_model_only=arguments.language_model_only,
        mmproj=arguments.mmproj,
        overrides=overrides_given(arguments),
    )
    if arguments.link is not None:
        link_to(Path(arguments.link), folder)
    model = load_manifest(folder)
    log.info("model prepared", model=model.name, computed_by=computed_by(model))
    print(folder)
    return 0


_BODIES = {
    "gateway": _gateway,
    "fork-server": _fork_server,
    "batches": _batches,
    "grpc": _grpc,
    "engine": _engine,
    "worker": _worker,
    "ray-workers": _ray_workers,
    "prepare": _prepare,
}
