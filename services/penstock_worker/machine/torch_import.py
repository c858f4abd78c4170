"""Imports torch only where somebody asks for something of it, and then without what only its
compilers, its meta device and training need.

The CPU kernels serve a GGUF file without torch, whose import takes most of a start and 200 MiB.
Modules say `import torch` at their top nevertheless, since most of what they are for needs it: in a
worker that is a module which is run when an attribute of it is looked at.

torch ends its own import with a module that says in Python, for some thousand operations, what
shape they give. A quarter of the import's processor time goes into it and into the decompositions
and primitive operations that it imports, and a sixth into layers for quantised training,
distributions, exporting of programs and loaders of training data. Nothing that computes with a
model's values asks for any of that, so it is run where somebody does: transformers, which describes
a model on the meta device first. Optimisers, profilers, masked tensors and other makers' devices
take another 5 MiB.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from penstock.process.uncollected import uncollected

META = ("torch._meta_registrations", "torch.distributed._meta_registrations")
"""Modules whose import is nothing but registrations for the meta device."""
UNUSED = (
    "torch.ao",
    "torch.distributions",
    "torch.export",
    "torch.masked",
    "torch.mps",
    "torch.mtia",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.optim",
    "torch.profiler",
    "torch.quantization",
    "torch.utils.data",
)
"""Packages that change nothing outside of themselves."""
DEFERRED = META + UNUSED
_TORCH = "torch"
_READ_FROM_OUTSIDE = ("__version__",)
"""Names with underscores that run torch. Others are read by code that inspects all modules."""

_RUNNING = threading.RLock()
_FAILED: dict[str, Exception] = {}
"""Why modules can't be run, by their names. Half run, they can't be run again: torch's library
would end the process."""
_WAITING: list[Callable[[], None]] = []
_around: Callable[[], AbstractContextManager[object]] = nullcontext


def defer_torch() -> None:
    """Makes `import torch` give a module that is run when something of it is wanted. Does nothing
    where torch has been imported. Without torch, ImportError comes when something of it is
    wanted."""
    if _TORCH in sys.modules:
        return
    spec = PathFinder.find_spec(_TORCH) or ModuleSpec(_TORCH, None, is_package=True)
    real = spec.loader or _Missing()
    module = ModuleType(_TORCH)
    module.__spec__, module.__loader__ = spec, real
    if spec.origin is not None:
        module.__file__ = spec.origin
    module.__path__ = spec.submodule_search_locations or []
    spec.loader = _DeferringLoader(real)
    spec.loader.exec_module(module)
    sys.meta_path.insert(0, _Finder())
    sys.modules[_TORCH] = module


def import_torch() -> None:
    """Imports torch, but for the modules of `DEFERRED`, which are there and not run yet. Does
    nothing where torch has been run."""
    defer_torch()
    _run(sys.modules[_TORCH])


def torch_runs() -> bool:
    """Whether torch has been imported, and not only deferred."""
    module = sys.modules.get(_TORCH)
    return module is not None and not isinstance(module, _Deferred)


def when_torch_runs(call: Callable[[], None]) -> None:
    """Calls it when torch has been imported: now, or when something of it is wanted."""
    with _RUNNING:
        if torch_runs():
            call()
        elif call not in _WAITING:  # A model may be loaded time and again.
            _WAITING.append(call)


def run_torch_within(context: Callable[[], AbstractContextManager[object]]) -> None:
    """Has torch run within a context of its own, in whichever thread it is run."""
    global _around
    _around = context


def complete_torch() -> None:
    """Runs what `import_torch` left out. Needed for the meta device, tracing and compiling."""
    import_torch()
    for name in DEFERRED:
        module = sys.modules.get(name)
        if module is not None:
            _run(module)


class _Deferred(ModuleType):
    """A module that is run when something of it is wanted. importlib's own lazy modules are run by
    any look at them, and `inspect` looks at all there are. A second thread that wants what isn't
    there yet waits, and holds none of Python's locks for modules of torch: see `_Finder`."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name not in _READ_FROM_OUTSIDE:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        with _RUNNING:  # Another thread waits until the module has been run.
            if vars(self).get("_runs"):
                return _of_a_running_module(self, name)
            _run(self)
        return getattr(self, name)


def _of_a_running_module(module: ModuleType, name: str) -> object:
    """Returns what its own code, which is being run, asks for and hasn't defined yet."""
    given = vars(module).get("__getattr__")
    if given is None:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r} yet")
    return given(name)


class _DeferringLoader(Loader):
    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """`_run` does, later."""
        module.__class__ = _Deferred


class _Missing(Loader):
    """The loader of a package that isn't installed."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise ModuleNotFoundError(f"No module named {module.__name__!r}", name=module.__name__)


class _Imported(Loader):
    """Loads a module that was imported while its package was run, and isn't to be run again."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _as_it_is(module: ModuleType) -> ModuleSpec:
    """Returns a spec by which the module is found and not run. It is the module's own until then,
    as Python prefers that."""
    module.__spec__ = spec = ModuleSpec(module.__name__, _Imported(module))
    return spec


class _Finder(MetaPathFinder):
    """Finds modules of torch.

    A thread that imports one holds its lock meanwhile, and the thread that runs torch may want it
    next. So a thread that begins with such a module doesn't wait while another runs torch, but gets
    an error; our own code first imports something of torch itself.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.rpartition(".")[0]
        if package.partition(".")[0] != _TORCH:
            return None
        if not torch_runs():
            _refuse_beside_another(fullname)
        parent = sys.modules[package]
        if isinstance(parent, _Deferred) and not vars(parent).get("_runs"):
            _run(parent)
            if (found := sys.modules.get(fullname)) is not None:
                return _as_it_is(found)
        if torch_runs() or fullname not in DEFERRED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


def _refuse_beside_another(name: str) -> None:
    """Raises ImportError while another thread runs torch."""
    if not _RUNNING.acquire(blocking=False):
        raise ImportError(
            f"{name} can't be imported while another thread imports torch: ask torch itself for"
            " something first",
            name=name,
        )
    _RUNNING.release()


def _run(module: ModuleType) -> None:
    with _around() if module.__name__ == _TORCH else nullcontext(), _RUNNING:
        spec = module.__spec__
        if spec is None or not isinstance(spec.loader, _DeferringLoader):
            return
        name, deferring = module.__name__, spec.loader
        if name in _FAILED:
            said = f"{name} could not be imported: {_FAILED[name]}"
            raise ImportError(said, name=name) from _FAILED[name]
        spec.loader = module.__loader__ = deferring.real
        vars(module)["_runs"] = True
        try:
            _execute(module, deferring.real)
        except BaseException as error:
            spec.loader = module.__loader__ = deferring
            deferring.exec_module(module)
            if isinstance(error, Exception) and f"{name}._C" in sys.modules:
                _FAILED[name] = error
            raise
        finally:
            vars(module).pop("_runs", None)
        module.__class__ = ModuleType
        if module.__name__ == _TORCH:
            while _WAITING:
                _WAITING.pop(0)()


def _execute(module: ModuleType, loader: Loader) -> None:
    with uncollected() if module.__name__ == _TORCH else nullcontext():
        loader.exec_module(module)
