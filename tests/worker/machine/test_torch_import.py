"""torch is imported where somebody asks for something of it, without what its meta device needs,
and completed where somebody needs that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

PROGRAM = """
import inspect, os, sys
from penstock_worker.machine.torch_import import complete_torch, import_torch
import_torch()
import torch
inspect.getmodule(inspect.currentframe())  # looks at every module
print("torch._prims" in sys.modules, torch.arange(6.0).cumsum(0).tolist(), flush=True)
forked = os.fork()
if forked:
    os.waitpid(forked, 0)
    from torch._meta_registrations import kthvalue_meta
    import torch.nn.quantized.modules
    from torch.utils.data import DataLoader
    torch.export.export, DataLoader
    print(torch.nn.quantized.Linear.__name__, torch.distributions.Normal(0.0, 1.0).mean)
else:
    complete_torch()
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        print(torch.kthvalue(torch.empty(4, 6), 2).values.shape, flush=True)
print(type(sys.modules["torch._meta_registrations"].__loader__).__name__, flush=True)
"""


def test_what_is_left_out_of_torch_is_run_when_it_is_asked_for() -> None:
    with FakeTensorMode():
        shape = torch.kthvalue(torch.empty(4, 6), 2).values.shape
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        f"False {torch.arange(6.0).cumsum(0).tolist()}",
        str(shape),
        "SourceFileLoader",
        "Linear tensor(0.)",
        "SourceFileLoader",
    ], done.stderr


def run(program: str) -> list[str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


DEFERRED = """
import inspect, sys, threading
from penstock_worker.machine.torch_import import defer_torch, torch_runs, when_torch_runs
defer_torch()
import torch
inspect.getmodule(inspect.currentframe())  # looks at every module
print(torch_runs(), "torch._C" in sys.modules)
when_torch_runs(lambda: print("runs", torch_runs()))
found, together = [], threading.Barrier(6)
def ask():
    together.wait()
    found.append(torch.ones(3).sum().item())
threads = [threading.Thread(target=ask) for _ in range(6)]
for each in threads: each.start()
for each in threads: each.join()
when_torch_runs(lambda: print("at once"))
from torch import Tensor
import torch.nn.functional
print(found, type(torch).__name__, Tensor is torch.Tensor, torch.__version__ != "")
"""


def test_a_deferred_torch_is_run_once_when_threads_ask_for_something() -> None:
    assert run(DEFERRED) == [
        "False False",
        "runs True",
        "at once",
        f"{[3.0] * 6} module True True",
    ]


@pytest.mark.parametrize("asks", ["import torch.nn", "torch.ones(1)", "torch.__version__"])
def test_a_module_or_an_attribute_of_it_runs_it(asks: str) -> None:
    program = f"""
from penstock_worker.machine.torch_import import defer_torch, torch_runs
defer_torch()
import torch
{asks}
print(torch_runs())
"""
    assert run(program) == ["True"]


@pytest.mark.parametrize("name", ["nn", "distributed", "autograd", "utils._pytree"])
def test_who_begins_with_a_module_of_it_runs_nothing_twice(name: str) -> None:
    """Torch's library ends the process that registers its types twice."""
    program = f"""
from importlib.machinery import SourceFileLoader
from penstock_worker.machine.torch_import import defer_torch, torch_runs
ran, run = [], SourceFileLoader.exec_module
SourceFileLoader.exec_module = lambda self, module: (ran.append(module.__name__), run(self, module))
defer_torch()
import torch.{name}
print(torch_runs(), len(ran) - len(set(ran)), type(torch.{name}.__spec__.loader).__name__)
"""
    assert run(program) == ["True 0 SourceFileLoader"]


def test_who_begins_with_a_module_of_it_keeps_no_other_thread_waiting(tmp_path: Path) -> None:
    """It holds Python's lock for that module, which the thread that runs torch wants next."""
    (tmp_path / "order.py").write_text("import threading\nruns = threading.Event()\n")
    fake(
        tmp_path,
        "import order, time\n"
        "order.runs.set()\n"
        "while not order.asks(): time.sleep(0.01)\n"
        "ones = 'ones'\n"
        "import torch.nn\n",
    )
    (tmp_path / "torch" / "nn.py").write_text("from torch import ones\n")
    program = f"""
import sys, threading
sys.path.insert(0, {str(tmp_path)!r})
from penstock_worker.machine import torch_import
import order
torch_import.defer_torch()
import torch
def begin():
    order.runs.wait()
    try: import torch.nn
    except ImportError as error: print(error)
second = threading.Thread(target=begin)
def asks():  # it has been told, or waits
    frame = sys._current_frames().get(second.ident)
    while frame is not None and frame.f_code.co_name != "__getattr__": frame = frame.f_back
    return not second.is_alive() or frame is not None
order.asks = asks
second.start()
print(torch.ones)
second.join()
import torch.nn
print(torch.nn.__name__)
"""
    assert sorted(run(program)) == [
        "ones",
        "torch.nn",
        "torch.nn can't be imported while another thread imports torch: ask torch itself for"
        " something first",
    ]


def test_one_that_cannot_be_imported_says_so_each_time(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('broken')\n")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from penstock_worker.machine.torch_import import defer_torch, torch_runs
defer_torch()
import torch
for _ in range(2):
    try: torch.ones(1)
    except ImportError as error: print(error, torch_runs())
"""
    assert run(program) == ["broken False"] * 2


def test_one_that_is_not_installed_is_missed_when_it_is_wanted() -> None:
    program = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
from penstock_worker.machine.torch_import import defer_torch
defer_torch()
import torch
try: torch.ones(1)
except ModuleNotFoundError as error: print(error.name)
"""
    assert run(program) == ["torch"]


def fake(folder: Path, code: str) -> None:
    """A package torch, with a library in the place of torch's own."""
    (folder / "torch").mkdir()
    (folder / "torch" / "_C.py").write_text("")
    (folder / "torch" / "__init__.py").write_text(code)


def test_one_that_was_run_in_half_is_not_run_again(tmp_path: Path) -> None:
    """torch's library would end the process: it registers its types once."""
    fake(tmp_path, "print('runs')\nimport torch._C\nraise MemoryError('no room')\n")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from penstock_worker.machine.torch_import import defer_torch
defer_torch()
import torch
for _ in range(3):
    try: torch.ones(1)
    except (ImportError, MemoryError) as error: print(type(error).__name__, error)
"""
    again = "ImportError torch could not be imported: no room"
    assert run(program) == ["runs", "MemoryError no room", again, again]


def test_a_signal_ends_the_worker_after_torch_has_been_run(tmp_path: Path) -> None:
    """Raised in the middle, an exception may be lost or end the process."""
    fake(
        tmp_path,
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "sum(range(100_000))  # the handler has been called\n"
        "print('run', flush=True)\n"
        "ones = print\n",
    )
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from penstock_worker.machine.torch_import import defer_torch, torch_runs
from penstock_worker.process import Signals
defer_torch()
import torch
signals = Signals()
try:
    with signals.interrupting():
        torch.ones("not called")
except BaseException as error:
    print(type(error).__name__, signals.asked, torch_runs())
"""
    assert run(program) == ["run", "_Leave True True"]
