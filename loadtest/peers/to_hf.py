"""A GGUF file's weights as a bfloat16 folder in the hub's format, for servers that read no GGUF.

Run it in a peer's environment, which has torch, transformers, gguf and safetensors:
    PEERS_DIR/vllm/bin/python loadtest/peers/to_hf.py MODEL.gguf FOLDER
The folder is complete or absent: it is written under another name first.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

# Say where the weights came from, not what they are: a loader would look for the GGUF file.
_PROVENANCE = ("quantization_config", "_name_or_path", "_model_name_or_path")


def convert(source: Path, folder: Path) -> None:
    """Raises what transformers raises for a file that it can't read."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    AutoTokenizer.from_pretrained(**place).save_pretrained(partial)
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    tensors = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight" or not model.config.tie_word_embeddings
    }
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    for name in _PROVENANCE:
        config.pop(name, None)
    config["architectures"] = [type(model).__name__]
    ends = {name: config.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(partial / "config.json", config)
    _write_json(partial / "generation_config.json", ends)
    partial.rename(folder)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, default=str) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    flags = parser.parse_args()
    if not flags.gguf.is_file():
        sys.exit(f"to_hf: no such file: {flags.gguf}")
    if flags.folder.exists():
        print(f"to_hf: {flags.folder} is there already")
    else:
        convert(flags.gguf.resolve(), flags.folder.resolve())
        print(f"to_hf: written {flags.folder}")
