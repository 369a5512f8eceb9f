"""What is captured on a card does nothing there that a capture refuses."""

from itertools import product
from pathlib import Path

import pytest

from headlong.heads.head_weights import HeadKind
from model_files import ARCHITECTURES

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
import model_files  # noqa: E402
from captured_rounds import DeviceOfNothing  # noqa: E402  # needs both
from headlong.decode.device.round import RoundShape  # noqa: E402
from headlong.ops.cuda.paged_blocks import why_not_fast  # noqa: E402
from headlong.ops.cuda.pick import Draw  # noqa: E402

KINDS: tuple[HeadKind, ...] = ("nextn", "eagle3")


def shape(lanes: int, depth: int, behind: int, draw: Draw, shown: int) -> RoundShape:
    """Return the shape of a round; the head drafts where it observes."""
    drafts = behind > 0
    return RoundShape(lanes, depth, behind, drafts, drafts, 16, draw, shown)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_round_can_be_captured(
    architecture: str, kind: HeadKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(model_files.NUM_LAYERS, architecture, 4)
    device = DeviceOfNothing(model_files.write_hf_folder(tmp_path, architecture), kind)
    assert why_not_fast(device.backbone.layers) is None
    for lanes, depth, draw in product((1, 8), (0, 3), Draw):
        for behind in (0, 5) if depth else (0,):
            shown = 1 if draw is Draw.FILTERS else 0
            found = device.capture(shape(lanes, depth, behind, draw, shown))
            assert found.numbers.shape == (lanes, 3 * depth + 3)
            assert (0 if found.logits is None else len(found.logits)) == shown
