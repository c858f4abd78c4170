"""Whether a model can be computed here, and the operator's error message if it can't."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.prepared_model import PreparedModel
from penstock.model.speculation import LOOKUPS
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.backends import chooses_torch
from penstock_worker.forward.interface import Unable
from penstock_worker.machine.torch_import import import_torch, torch_runs

_TORCH = "torch"


@contextmanager
def told_to_the_operator(prepared: PreparedModel) -> Iterator[None]:
    """While the context is open, what this machine or its installation can't compute raises
    StartupError, whether a backend, a loader, or the check of files finds it."""
    try:
        yield
    except Unable as error:
        raise _refusal(prepared, str(error)) from error
    except ImportError as error:
        if (error.name or "").partition(".")[0] != _TORCH:
            raise
        raise _refusal(prepared, _without_torch(error)) from error


def check_computable(prepared: PreparedModel, setup: Setup) -> None:
    """Imports torch where something of the model is computed with it: in a step that would take a
    second, and its memory wouldn't be counted. Then checks the model's files.

    Raises StartupError without a torch that can be imported, and what `check_files` raises.
    """
    if _needs_torch(prepared, setup):
        try:
            import_torch()
        except (ImportError, OSError) as error:  # OSError: a library of torch's is missing.
            raise _refusal(prepared, _without_torch(error)) from error
    if setup.load_format == "auto":
        check_files(prepared)


def check_files(prepared: PreparedModel, role: str = "") -> None:
    """Asks the files of a model for all that is computed, before any weights are read. Where torch
    doesn't run, the CPU kernels' loader finds what is missing while it reads. role: what the
    operator calls the model, if it isn't the one that is served.

    Raises UnsupportedModel for files that lack something, or Unable.
    """
    if not torch_runs():
        return
    from penstock_worker.loading import tensors  # It asks torch for something.

    try:
        tensors.check_tensors(prepared)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{role}: {error}" if role else str(error)) from error


def _needs_torch(prepared: PreparedModel, setup: Setup) -> bool:
    """Whether something is computed with torch in any case. More may turn out to be: weights that
    only torch decodes, models that the CPU kernels can't run."""
    drafts = setup.speculation is not None and setup.speculation.method not in LOOKUPS
    return (
        drafts
        or setup.pooling is not None
        or setup.max_loras > 0
        or (prepared.media is not None and prepared.config.takes_media)
        or chooses_torch(prepared, setup)
    )


def _refusal(prepared: PreparedModel, reason: str) -> StartupError:
    return StartupError(f"{prepared.name} can't be computed here: {reason}")


def _without_torch(error: Exception) -> str:
    return f"it needs torch, which can't be imported ({error}): pip install 'penstock-llm[worker]'"
