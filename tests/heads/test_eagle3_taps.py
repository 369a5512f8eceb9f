"""Which layers an EAGLE-3 head's config means by its taps."""

from pathlib import Path
from typing import Any

import pytest

from headlong.errors import HeadError
from headlong.heads.eagle3 import default_taps, resolve_taps
from headlong.models.settings import Settings


@pytest.mark.parametrize(
    ("top", "nested", "meant"),
    [
        (None, None, (2, 15, 27)),
        ([2, 15, 27], None, (2, 15, 27)),
        ([3, 9, 20], None, (3, 9, 20)),
        ([1, 14, 26], None, (2, 15, 27)),  # outputs, in the wrong place
        (None, [1, 14, 26], (2, 15, 27)),
        (None, [1, 13, 25], (2, 14, 26)),  # outputs of layers that are not the usual ones
        (None, [2, 15, 27], (2, 15, 27)),
        ([3, 9, 20], [2, 8, 19], (3, 9, 20)),  # a folder for vLLM and SGLang
        ([1, 14, 26], [0, 13, 25], (1, 14, 26)),
    ],
)
def test_taps_are_read_as_their_writers_count_them(
    top: list[int] | None, nested: list[int] | None, meant: tuple[int, ...]
) -> None:
    """Guards against a head that reads its states one layer off: all it does is draft badly."""
    assert default_taps(30) == (2, 15, 27)
    name = "eagle_aux_hidden_state_layer_ids"
    config = {name: top, "eagle_config": None if nested is None else {name: nested}}
    assert resolve_taps(Settings(config, Path("head")), 30, "head") == meant


@pytest.mark.parametrize("taps", [[1, 2], [2, 1, 3], [1, 2, 30], ["a", "b", "c"], [0, True, 5]])
def test_impossible_taps_are_refused(taps: list[Any]) -> None:
    settings = Settings({"eagle_aux_hidden_state_layer_ids": taps}, Path("head"))
    with pytest.raises(HeadError):
        resolve_taps(settings, 30, "head")
