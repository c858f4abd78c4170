"""Imports torch without what only its compilers, its meta device and training need.

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
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

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

_RUNNING = threading.RLock()


def import_torch() -> None:
    """Imports torch, but for the modules of `DEFERRED`, which are there and not run yet. Does
    nothing where torch has been imported."""
    if "torch" in sys.modules:
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        import torch  # noqa: F401
    finally:
        sys.meta_path.remove(finder)


def complete_torch() -> None:
    """Runs what `import_torch` left out. For whoever uses the meta device, traces or compiles."""
    for name in DEFERRED:
        module = sys.modules.get(name)
        if module is not None:
            _run(module)


class _Deferred(ModuleType):
    """A module that is run when something of it is wanted. importlib's own lazy modules are run by
    any look at them, and `inspect` looks at all there are."""

    def __getattr__(self, name: str) -> object:
        # The path is what whoever imports one of a package's modules asks for.
        if name.startswith("__") and not (name == "__path__" and _is_package(self)):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        _run(self)
        return getattr(self, name)


class _DeferringLoader(Loader):
    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """`_run` does, later."""
        vars(module).pop("__path__", None)
        module.__class__ = _Deferred


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in DEFERRED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


def _is_package(module: ModuleType) -> bool:
    spec = module.__spec__
    return spec is not None and spec.submodule_search_locations is not None


def _run(module: ModuleType) -> None:
    with _RUNNING:
        spec = module.__spec__
        if spec is None or not isinstance(spec.loader, _DeferringLoader):
            return
        spec.loader = module.__loader__ = spec.loader.real
        module.__class__ = ModuleType
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        spec.loader.exec_module(module)
