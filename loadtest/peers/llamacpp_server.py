"""llama.cpp's server, in its own environment:

    PEERS_DIR/xllamacpp/bin/python loadtest/peers/llamacpp_server.py THREADS MODEL [MMPROJ]

Writes one line with the server's address, and serves until its stdin ends.  llama.cpp reads chat
template and tokenizer from the GGUF file by itself.  MMPROJ: the half of the model that sees.
"""

from __future__ import annotations

import sys

# This file's folder must not stand before the library's own modules.
sys.path.pop(0)

import xllamacpp  # type: ignore[import-not-found]  # in the peer's environment only


def main(threads: int, model: str, mmproj: str = "") -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel = 8 * 1024, 8
    params.cpuparams.n_threads = threads
    params.verbosity = 0
    if mmproj:
        params.mmproj.path = mmproj
        params.cpuparams_batch.n_threads = threads
        params.use_jinja = True
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
