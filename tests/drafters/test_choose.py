from collections.abc import Callable

import pytest

from headlong.config import DrafterName
from headlong.drafters.choose import make_drafter
from headlong.errors import RequestError
from headlong.models.transformer import Backbone


@pytest.mark.parametrize(
    ("name", "ways_out"),
    [
        ("head", ("--head DIR", "head=…", "--drafter ngram", "drafter='ngram'")),
        ("draft-model", ("--draft-model MODEL", "draft_model=…")),
    ],
)
def test_missing_parts_are_named_for_the_shell_and_for_python(
    name: DrafterName, ways_out: tuple[str, ...], tiny_backbone: Callable[[str], Backbone]
) -> None:
    with pytest.raises(RequestError) as refusal:
        make_drafter(name, tiny_backbone("llama"), None, None)
    assert all(way in refusal.value.remedy for way in ways_out)


def test_auto_without_a_head_drafts_with_ngrams(
    tiny_backbone: Callable[[str], Backbone],
) -> None:
    drafter = make_drafter("auto", tiny_backbone("llama"), None, None)
    assert drafter is not None
    assert drafter.name == "ngram"
    assert make_drafter("none", tiny_backbone("llama"), None, None) is None
