#!/bin/sh
# build.sh SRC OUT [cuda|cpu]
# Builds OUT/bench from the ggml folder in SRC (SRC/ggml) for one backend. A second call goes on where the first stopped.
# JOBS sets the number of parallel compilers (16).
set -eu
SRC=$(cd "$1" && pwd)
mkdir -p "$2"
OUT=$(cd "$2" && pwd)
BACKEND=${3:-cuda}
JOBS=${JOBS:-16}
HERE=$(cd "$(dirname "$0")" && pwd)

set -- -G Ninja -S "$HERE" -B "$OUT" -DGGML_DIR="$SRC/ggml" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DGGML_CCACHE=OFF -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF

if [ "$BACKEND" = cpu ]; then
    set -- "$@" -DGGML_CPU=ON -DGGML_CUDA=OFF
else
    NVCC=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    [ -x "$NVCC" ] || { echo "build.sh: no nvcc on PATH or in /usr/local/cuda" >&2; exit 2; }
    "$NVCC" --version | tail -2
    ROOT=$(dirname "$(dirname "$(readlink -f "$NVCC")")")
    INC=
    find_file() { find -L "$ROOT/include" "$ROOT"/targets/*/include /usr/include -path "*/$1" 2>/dev/null | head -1; }
    # The libraries come from the toolkit; where an image lacks them there, from the Python packages beside it.
    PY=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null || echo /nonexistent)
    if [ -z "$(find_file cublas_v2.h)" ]; then
        H=$(find -L "$PY/nvidia" -name cublas_v2.h 2>/dev/null | head -1)
        [ -n "$H" ] || { echo "build.sh: no cublas_v2.h in $ROOT or $PY/nvidia" >&2; exit 2; }
        INC="-I$(dirname "$H")"
        echo "build.sh: cublas header from $H"
    fi
    if [ -z "$(find -L "$ROOT/lib64" "$ROOT"/targets/*/lib /usr/lib -name libcublas.so 2>/dev/null | head -1)" ]; then
        for L in cublas cublasLt; do
            F=$(find -L "$ROOT/lib64" "$PY/nvidia" -name "lib$L.so.*" 2>/dev/null | head -1)
            [ -n "$F" ] || { echo "build.sh: no lib$L in $ROOT or $PY/nvidia" >&2; exit 2; }
            set -- "$@" "-DCUDA_${L}_LIBRARY=$F"
            echo "build.sh: lib$L from $F"
        done
    fi
    if [ -z "$(find -L "$ROOT/lib64" "$ROOT"/targets/*/lib /usr/lib -name libcudart.so 2>/dev/null | head -1)" ]; then
        F=$(find -L "$ROOT" "$PY/nvidia" -name 'libcudart.so.*' 2>/dev/null | head -1)
        [ -n "$F" ] || { echo "build.sh: no libcudart in $ROOT or $PY/nvidia" >&2; exit 2; }
        set -- "$@" "-DCUDA_CUDART=$F"
        echo "build.sh: libcudart from $F"
    fi
    if [ -z "$(find_file cub/cub.cuh)" ]; then
        H=$(find -L "$PY" -path '*/cub/cub.cuh' 2>/dev/null | head -1)
        [ -n "$H" ] || { echo "build.sh: no cub/cub.cuh in $ROOT or $PY" >&2; exit 2; }
        C=$(dirname "$(dirname "$H")")
        INC="$INC -I$C -I$(dirname "$C")/thrust -I$(dirname "$C")/libcudacxx -I$(dirname "$C")/libcudacxx/include"
        echo "build.sh: cub from $H"
    fi
    # NO_VMM: scratch from the plain pool, so that no libcuda.so is needed at link time; the kernels are the same.
    # CPU off: nothing timed runs there. Compression off: it only costs build time.
    set -- "$@" -DGGML_CPU=OFF -DGGML_CUDA=ON -DGGML_CUDA_GRAPHS=ON -DGGML_CUDA_FA=OFF -DGGML_CUDA_NCCL=OFF \
        -DGGML_CUDA_NO_VMM=ON -DGGML_CUDA_COMPRESSION_MODE=none \
        -DCMAKE_CUDA_COMPILER="$NVCC" -DCMAKE_CUDA_ARCHITECTURES=90 "-DCMAKE_CUDA_FLAGS=$INC"
fi

cmake "$@" > "$OUT/configure.log" 2>&1 || { tail -40 "$OUT/configure.log" >&2; exit 3; }
grep -i 'ggml version\|Using CMAKE_CUDA\|Including' "$OUT/configure.log" || true
START=$(date +%s)
ninja -C "$OUT" -j"$JOBS" bench > "$OUT/build.log" 2>&1 ||
    { grep -n 'error\|FAILED\|undefined' "$OUT/build.log" | head -40 >&2; tail -30 "$OUT/build.log" >&2; exit 4; }
echo "built in $(($(date +%s) - START)) s"
