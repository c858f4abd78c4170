"""Makes models for tokens.py of an embedding model: `python making.py KIND MODEL FOLDER`, in the
environment that has pylate and FlagEmbedding. The body is the model's, so that the work is that of
a real one; the layers behind it are random, the same at each call.

Nothing of this repository is imported.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path


def late(model: str, folder: Path) -> None:
    """What pylate makes of a model that it hasn't trained, and how it saves it."""
    from pylate.models import ColBERT

    ColBERT(model, embedding_size=128, device="cpu", local_files_only=True).save_pretrained(
        str(folder)
    )


def m3(model: str, folder: Path) -> None:
    """BGE-M3's files: its two layers as FlagEmbedding reads them, and as safetensors."""
    import torch
    from safetensors.torch import save_file

    shutil.copytree(model, folder)
    size = json.loads((folder / "config.json").read_text())["hidden_size"]
    for name, outputs in (("sparse_linear", 1), ("colbert_linear", size)):
        tensors = torch.nn.Linear(size, outputs).state_dict()
        torch.save(tensors, folder / f"{name}.pt")
        save_file(dict(tensors), folder / f"{name}.safetensors")
    stated = folder / "1_Pooling" / "config.json"
    modes = {
        name: name == "pooling_mode_cls_token" if isinstance(value, bool) else value
        for name, value in json.loads(stated.read_text()).items()
    }
    stated.write_text(json.dumps(modes))


if __name__ == "__main__":
    import torch

    torch.manual_seed(0)
    {"late": late, "m3": m3}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
