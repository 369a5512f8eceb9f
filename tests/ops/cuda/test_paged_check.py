"""The look at kernels before they are used: right ones pass, wrong ones are named."""

from pathlib import Path

import pytest

from headlong.models.registry import load_backbone
from headlong.ops.blocks import Attention, Layer
from headlong.weights.checkpoint import open_checkpoint
from model_files import write_hf_folder

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402  # all need torch

from headlong.ops.cuda.ops import CudaOps  # noqa: E402
from headlong.ops.cuda.paged_blocks import PAGE_SIZE, DeviceRows, PagedKeys  # noqa: E402
from headlong.ops.cuda.paged_check import why_not_trusted  # noqa: E402
from headlong.ops.cuda.plain_paged_blocks import PlainPagedBlocks  # noqa: E402
from headlong.ops.cuda.triton_tiles import KEY_BLOCK, Tiles  # noqa: E402


class Altered(PlainPagedBlocks):
    """Blocks whose layers give something else: more, or more for each row of a pass."""

    def __init__(self, ops: CudaOps, added: float = 0.0, added_per_row: float = 0.0) -> None:
        super().__init__(ops)
        self.added, self.added_per_row = added, added_per_row

    def run_layer(
        self,
        x: Tensor,
        layer: Layer,
        pages: PagedKeys,
        rows: DeviceRows,
        beside: Tensor | None = None,
    ) -> Tensor:
        """Run the layer and alter the result."""
        result = super().run_layer(x, layer, pages, rows, beside)
        return result + self.added + self.added_per_row * len(x)


@pytest.fixture(scope="module")
def layer_and_ops(tmp_path_factory: pytest.TempPathFactory) -> tuple[Layer, CudaOps]:
    """A layer of a tiny random model."""
    folder: Path = write_hf_folder(tmp_path_factory.mktemp("llama"), "llama")
    ops = CudaOps(torch.device("cpu"))
    return load_backbone(open_checkpoint(folder), ops).backbone.layers[0], ops


def test_right_blocks_are_trusted(layer_and_ops: tuple[Layer, CudaOps]) -> None:
    layer, ops = layer_and_ops
    assert why_not_trusted(ops, ops.paged, layer) is None
    assert why_not_trusted(ops, Altered(ops), layer) is None


def test_other_numbers_are_named(layer_and_ops: tuple[Layer, CudaOps]) -> None:
    layer, ops = layer_and_ops
    for added in (2.0, float("nan")):
        reason = why_not_trusted(ops, Altered(ops, added), layer)
        assert reason is not None
        assert "plain torch" in reason


def test_bits_that_change_with_the_pass_are_named(layer_and_ops: tuple[Layer, CudaOps]) -> None:
    layer, ops = layer_and_ops
    reason = why_not_trusted(ops, Altered(ops, added_per_row=1e-6), layer)
    assert reason is not None
    assert "bits change" in reason


def test_rows_are_seen_whose_keys_programs_share_and_rows_whose_keys_none_share(
    layer_and_ops: tuple[Layer, CudaOps],
) -> None:
    """These are two kernels of attention; which one runs depends on rows and on the page table."""
    layer, ops = layer_and_ops
    seen: set[bool] = set()

    class Watched(PlainPagedBlocks):
        def attend(
            self, qkv: Tensor, block: Attention, pages: PagedKeys, rows: DeviceRows
        ) -> Tensor:
            num_blocks = rows.page_table.shape[1] * PAGE_SIZE // KEY_BLOCK
            seen.add(Tiles().shares(len(qkv) * block.num_kv_heads, num_blocks) > 1)
            return super().attend(qkv, block, pages, rows)

    assert why_not_trusted(ops, Watched(ops), layer) is None
    assert seen == {True, False}
