"""torch is imported without what its meta device needs, and completed where somebody needs it."""

from __future__ import annotations

import subprocess
import sys

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
