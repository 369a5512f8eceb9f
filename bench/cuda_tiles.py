"""Other tile sizes of the CUDA kernels, and the passes with the best of each."""

from contextlib import suppress
from functools import partial

from cuda_report import say
from cuda_shapes import LARGE, PACKINGS, SMALL, Model, Pass, Shape
from cuda_timing import BANDWIDTH, CONTEXT, make_ops, milliseconds, steps_of

from headlong.ops.cuda.triton_tiles import FEW_ROWS, Tile, Weights

WORKERS = 8

SMALL_TILES = [
    Tile(FEW_ROWS, outputs, inputs, stages, warps, lines)
    for outputs, inputs, stages, warps, lines in (
        (16, 64, 6, 4, 32),
        (16, 64, 6, 4, 0),
        (16, 64, 9, 4, 32),
        (16, 64, 9, 2, 32),
        (16, 64, 9, 1, 32),
        (16, 64, 4, 2, 32),
        (32, 64, 6, 4, 32),
        (16, 128, 5, 4, 32),
        (16, 128, 5, 2, 32),
        (16, 256, 3, 4, 32),
    )
]
LARGE_TILES = [
    Tile(FEW_ROWS, outputs, inputs, stages, warps, lines)
    for outputs, inputs, stages, warps, lines in (
        (16, 256, 4, 4, 8),
        (16, 128, 8, 4, 8),
        (32, 128, 5, 4, 8),
        (32, 128, 5, 4, 0),
        (32, 256, 4, 4, 8),
        (64, 64, 6, 4, 8),
        (64, 128, 4, 4, 8),
        (64, 128, 6, 4, 8),
        (128, 64, 6, 8, 8),
    )
]
LEVEL_TILES = [
    Tile(FEW_ROWS, outputs, inputs, stages, warps, lines)
    for outputs, inputs, stages, warps, lines in (
        (32, 128, 4, 4, 8),
        (32, 64, 6, 4, 8),
        (32, 256, 3, 4, 8),
        (16, 128, 4, 2, 8),
        (64, 128, 4, 4, 8),
        (64, 64, 8, 4, 8),
        (64, 128, 4, 8, 8),
        (128, 128, 3, 8, 8),
        (32, 128, 4, 4, 0),
    )
]


def weights_of(shape: Shape, kind: str) -> dict[str, Weights]:
    """Return the matrices of a layer as tiles are chosen for them."""
    heads = shape.heads * shape.head_dim
    bits = PACKINGS[kind].bits if kind in PACKINGS else 16
    return {
        "qkv": Weights(heads + 2 * shape.kv_heads * shape.head_dim, shape.hidden, bits),
        "output": Weights(shape.hidden, heads, bits),
        "gate": Weights(shape.inner, shape.hidden, bits, True),
        "down": Weights(shape.hidden, shape.inner, bits),
        "head": Weights(shape.vocabulary, shape.hidden, bits),
    }


def searches() -> list[tuple[Shape, str, list[Tile]]]:
    """Return what tiles are tried with what."""
    return [(SMALL, "bf16", SMALL_TILES), (LARGE, "bf16", LARGE_TILES), (LARGE, "q4", LEVEL_TILES)]


def compile_share(number: int) -> None:
    """Compile every `WORKERS`-th of the tiles, so that the search finds them compiled."""
    for shape, kind, tiles in searches():
        model = Model(make_ops(), shape, kind, layers=1)
        work = Pass(model, 1, 64)
        chosen = model.ops.paged.tiles  # type: ignore[attr-defined]
        each = [
            (w, tile) for tile in tiles[number::WORKERS] for w in weights_of(shape, kind).values()
        ]
        for weights, tile in each:
            chosen.own = {weights: tile}
            with suppress(Exception):  # too large for the chip: the search says so
                work.run(work.rows([0], [0]), with_logits=True)


def search_tiles() -> None:
    """Try other tiles of every product, and time the passes with the best of each."""
    for shape, kind, tiles in searches():
        model = Model(make_ops(), shape, kind)
        work = Pass(model, 64, 1024)
        best: dict[Weights, Tile] = {}
        for name, weights in weights_of(shape, kind).items():
            times = timed(work, name, weights, best, tiles)
            best[weights] = times[0][1]
            told = ", ".join(f"{took:.2f} {tuple(tile)[1:]}" for took, tile in times[:6])
            say(f"  {shape.name} {kind} {name}, µs (outputs, inputs, stages, warps, lines): {told}")
        model.ops.paged.tiles.own = best  # type: ignore[attr-defined]
        took = {}
        for count in (1, 8):
            rows = work.rows([0] * count, list(range(CONTEXT, CONTEXT + count)))
            took[count] = milliseconds(partial(work.run, rows, with_logits=True))
        share = model.num_bytes / took[1] * 1e3 / BANDWIDTH
        say(
            f"  best {shape.name} {kind}: 1 row {took[1]:.3f} ms, 8 rows {took[8] / took[1]:.2f} "
            f"of it, {share:.0%} of bandwidth"
        )


def timed(
    work: Pass, name: str, weights: Weights, best: dict[Weights, Tile], tiles: list[Tile]
) -> list[tuple[float, Tile]]:
    """Return the microseconds of one product with every tile, the quickest first."""
    model = work.model
    step = steps_of(model, work, 1)["mlp" if name in ("gate", "down") else name]
    times = []
    for tile in tiles:
        model.ops.paged.tiles.own = {**best, weights: tile}  # type: ignore[attr-defined]
        try:
            took = milliseconds(step, 5) * 1e3
        except Exception as error:  # too large for the chip
            say(f"    {name} {tuple(tile)[1:]}: {error!r:.60}")
            continue
        times.append((took / (1 if name == "head" else len(model.layers)), tile))
    return sorted(times)
