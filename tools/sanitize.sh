#!/bin/sh
# Build the kernels with sanitisers and run their tests: address and undefined behaviour first, then
# data races. Usage: tools/sanitize.sh [PYTHON]. Everything is made under build/, nothing installed.
set -eu
cd "$(dirname "$0")/.."
# CMake wants the whole path; links are not followed, or a virtual environment would be left.
python=$(command -v "${1:-python3}")
case $python in /*) ;; *) python=$PWD/$python ;; esac
tests="tests/ops/native/test_weights.py tests/ops/native/test_ops.py tests/ops/native/test_invariance.py
    tests/ops/native/test_recurrent.py tests/ops/native/test_latent.py
    tests/ops/test_picking.py tests/ops/test_token_index.py tests/ops/test_packed_rows.py
    tests/drafters/test_head_drafter.py"

# An editable install puts its own finder before PYTHONPATH; without this the tests would run on the
# ordinary kernels, and nothing would ever be found.
launcher='
import sys, pytest
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
from headlong.ops import _native
assert f"/{sys.argv[1]}/" in _native.__file__, f"not the kernels under test: {_native.__file__}"
sys.exit(pytest.main(sys.argv[2:]))
'

run() { # name, sanitisers, runtime library, options, arguments for pytest
    build="build/$1"
    cmake -S . -B "$build" -DPython_EXECUTABLE="$python" -DHEADLONG_SANITIZE="$2" >/dev/null
    cmake --build "$build" --parallel 2 >/dev/null
    # A copy of the package with these kernels in it; the one in use stays as it is.
    rm -rf "$build/site" && mkdir -p "$build/site"
    cp -r src/headlong "$build/site/headlong"
    rm -f "$build"/site/headlong/ops/_native*.so
    cp "$build"/_native*.so "$build/site/headlong/ops/"
    echo "sanitisers: $2"
    # The child of the fork test would need the runtime's own fork handling, and the shipped head takes
    # minutes, so both are left out.
    # The C++ runtime is loaded along, so that the sanitiser sees exceptions being thrown.
    env LD_PRELOAD="$(g++ -print-file-name="$3") $(g++ -print-file-name=libstdc++.so)" PYTHONPATH="$PWD/$build/site" OPENBLAS_NUM_THREADS=1 "$4" \
        "$python" -c "$launcher" "$build" -q -p no:cacheprovider $tests -k "not forked and not shipped"
}

run asan address,undefined libasan.so ASAN_OPTIONS=detect_leaks=0:halt_on_error=1
run tsan thread libtsan.so TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1
