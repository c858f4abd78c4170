"""llama.cpp's server for a model that sees, in its own environment:

    PEERS_DIR/xllamacpp/bin/python loadtest/pictures/llamacpp_peer.py TEXT MMPROJ THREADS

Writes one line with the server's address, and serves until its stdin ends.
"""

from __future__ import annotations

import sys

# This file's folder must not stand before the library's own modules.
sys.path.pop(0)

import xllamacpp  # type: ignore[import-not-found]  # in the peer's environment only


def main(text: str, mmproj: str, threads: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path, params.mmproj.path = text, mmproj
    params.n_ctx, params.n_parallel = 8 * 1024, 8
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.use_jinja = True
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
