"""The Metal kernels' arithmetic, lane by lane on this machine's processor.

No Apple GPU is at hand in most places, so their source is compiled as C++ with what it uses of
Metal written out: lanes run one after the other, and the last of them has the sum of all.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.ops.mlx.packing import pack_levels

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install 'headlong[mlx]'")
from headlong.ops.mlx import metal as mlx_metal  # noqa: E402  # needs MLX

_SHIM = """
#include <algorithm>
#include <cmath>
#include <cstddef>
using uint = unsigned;
using std::min;
using std::fma;
struct Place { int y, z; };
static float sums[1 << 16];
static int num_sums;
static float simd_sum(float one) { return sums[num_sums++] += one; }
using T = float;
constexpr int ROWS = %(rows)d, OUTPUTS = 4, SIMD_GROUPS = 2, BITS = %(bits)d, GROUP = 32;
extern "C" void run(const float* x, const %(word)s* weights, const float* scales,
                    const float* biases, float* y, int num, int width, int high) {
  const int x_shape[] = {num, width}, weights_shape[] = {high};
  const int groups = (high + 7) / 8, tiles = (num + ROWS - 1) / ROWS;
  for (int g = 0; g < groups * tiles * 2; g++) {
    const Place threadgroup_position_in_grid = {g / 2 %% groups, g / 2 / groups};
    const int simdgroup_index_in_threadgroup = g %% 2;
    std::fill(sums, sums + OUTPUTS * ROWS, 0.0f);
    for (int thread_index_in_simdgroup = 31; thread_index_in_simdgroup >= 0;
         thread_index_in_simdgroup--) {
      num_sums = 0;
      %(source)s
    }
  }
}
"""


@pytest.fixture(scope="module")
def compiler() -> str:
    """A C++ compiler, as the native backend needs one."""
    found = shutil.which("c++") or shutil.which("g++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def multiply(
    compiler: str, folder: Path, x: FloatArray, weights: np.ndarray, bits: int, rows: int
) -> FloatArray:
    """Run a kernel for so many rows at once; levels have the scale 0.5 and the bias -1."""
    source = mlx_metal.LEVELS if bits else mlx_metal.FLOATS
    word = "uint" if bits else "float"
    code, library = folder / f"k{bits}{rows}.cpp", folder / f"k{bits}{rows}.so"
    code.write_text(_SHIM % {"rows": rows, "bits": bits or 4, "word": word, "source": source})
    flags = ["-O1", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, code, "-o", library], check=True)
    y = np.full((len(x), len(weights)), np.nan, dtype=np.float32)
    halves = np.full(weights.size * 32, 0.5, dtype=np.float32)
    arrays = [x, weights, halves, -2 * halves, y]
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
    ctypes.CDLL(str(library)).run(*pointers, len(x), x.shape[1], len(weights))
    return y


def test_no_loop_over_an_array_is_left_to_the_compiler() -> None:
    """Left to itself, clang keeps eight rows in memory: correct, and many times slower."""
    for source in (mlx_metal.FLOATS, mlx_metal.LEVELS):
        lines = [line.strip() for line in source.splitlines()]
        loops = [place for place, line in enumerate(lines) if line.startswith("for (")]
        rolled = [lines[place] for place in loops if lines[place - 1] != "#pragma unroll"]
        assert rolled == ["for (int k = lane * RUN; k < inputs; k += 32 * RUN) {"]


def test_matrices_of_other_types_have_kernels_of_other_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MLX tells kernels apart by name: one name for two types is compiled again at every change."""
    made: list[str] = []
    monkeypatch.setattr(mx.fast, "metal_kernel", lambda name, **_: made.append(name))
    halves = (mx.uint32, mx.float16, mx.float16)
    for types in (halves, (mx.uint32, mx.bfloat16, mx.bfloat16), (mx.bfloat16,)):
        mlx_metal._kernel.__wrapped__(*types)
    assert made == [
        "headlong_uint32_float16_float16",
        "headlong_uint32_bfloat16_bfloat16",
        "headlong_bfloat16",
    ]


@pytest.mark.parametrize(("num_rows", "rows"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (11, 8)])
def test_the_grid_covers_every_row_and_output(
    num_rows: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[dict[str, Any]] = []

    def kernel(**given: Any) -> list[None]:
        called.append(given)
        return [None]

    monkeypatch.setattr(mlx_metal, "_kernel", lambda *types: kernel)
    mlx_metal.multiply_rows(mx.zeros((num_rows, 64)), (mx.zeros((13, 64)),), 0, 0)
    width, high, deep = called[0]["grid"]
    sizes = dict(called[0]["template"])
    assert called[0]["threadgroup"] == (width, 1, 1) == (32 * sizes["SIMD_GROUPS"], 1, 1)
    assert sizes["ROWS"] == rows
    assert num_rows <= deep * rows < num_rows + rows
    assert high == 2, "thirteen outputs, eight of a group of threads"
    assert called[0]["output_shapes"] == [(num_rows, 13)]


@pytest.mark.skipif(mx.metal.is_available(), reason="what runs there is compared when it is loaded")
@pytest.mark.parametrize("bits", [0, 4])
def test_mlx_takes_what_the_kernel_is_given(bits: int) -> None:
    """Arguments it does not know are a TypeError, before it misses a GPU."""
    levels = (mx.zeros((13, 8), mx.uint32), mx.zeros((13, 2)), mx.zeros((13, 2)))
    parts = levels if bits else (mx.zeros((13, 64)),)
    with pytest.raises(RuntimeError, match="No Metal back-end"):
        mlx_metal.multiply_rows(mx.zeros((11, 64)), parts, bits, 32)


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_every_row_gets_the_same_bits_whatever_is_beside_it(
    compiler: str, tmp_path: Path, bits: int
) -> None:
    """Sizes that fill neither the lanes nor the last group of outputs."""
    rng = np.random.default_rng(bits)
    x = rng.standard_normal((11, 288 if bits else 283)).astype(np.float32)
    if bits:
        levels = rng.integers(0, 2**bits, (13, x.shape[1]), dtype=np.uint8)
        weights: np.ndarray = pack_levels(levels, bits)
        values = levels.astype(np.float32) * 0.5 - 1
    else:
        weights = values = rng.standard_normal((13, x.shape[1])).astype(np.float32)
    found = [multiply(compiler, tmp_path, x, weights, bits, rows) for rows in (1, 2, 4, 8)]
    scale = np.abs(x) @ np.abs(values).T
    assert (np.abs(found[0] - x.astype(np.float64) @ values.T) <= 1e-6 * scale).all()
    for other in found[1:]:
        assert other.tobytes() == found[0].tobytes()
