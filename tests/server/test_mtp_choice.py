"""Which draft mode a request means: the names of its fields, a header, and contradictions."""

from typing import Any

import pytest
from pydantic import ValidationError

from headlong.config import MtpMode
from headlong.server.preparation import choose_mtp
from headlong.server.protocol import DraftFields
from headlong.server.refusal import ApiError


def choose(header: str | None = None, **fields: Any) -> MtpMode:
    """Choose with a default that no case below asks for."""
    return choose_mtp(DraftFields.model_validate(fields), header, default=9)


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, 9),
        ({"mtp": "auto"}, "auto"),
        ({"mtp": "off"}, "off"),
        ({"mtp": 4}, 4),
        ({"num_speculative_tokens": 4}, 4),
        ({"num_speculative_tokens": 0}, "off"),
        ({"speculative.n_max": 2}, 2),
        ({"speculative.n_max": 0}, "off"),
        ({"speculative": {"n_max": 3}}, 3),
        ({"mtp": None, "num_speculative_tokens": 5}, 5),
    ],
)
def test_every_name_is_understood(fields: dict[str, Any], mode: MtpMode) -> None:
    assert choose(**fields) == mode


@pytest.mark.parametrize(("header", "mode"), [("auto", "auto"), (" OFF ", "off"), ("16", 16)])
def test_header_says_the_same(header: str, mode: MtpMode) -> None:
    assert choose(header) == mode


def test_names_that_agree_are_one() -> None:
    assert choose("3", mtp=3, num_speculative_tokens=3, speculative={"n_max": 3}) == 3


@pytest.mark.parametrize(
    ("header", "fields"),
    [
        ("off", {"mtp": "auto"}),
        (None, {"mtp": 3, "num_speculative_tokens": 0}),
        (None, {"speculative.n_max": 2, "speculative": {"n_max": 3}}),
    ],
)
def test_contradictions_are_refused(header: str | None, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="Keep one") as caught:
        choose(header, **fields)
    assert caught.value.refusal.status == 400


@pytest.mark.parametrize("header", ["", "0", "17", "fast", "-1", "9" * 5000, "³"])
def test_bad_header_is_refused_with_its_range(header: str) -> None:
    with pytest.raises(ApiError, match="from 1 to 16") as caught:
        choose(header)
    assert caught.value.refusal.param == "X-Headlong-MTP"


@pytest.mark.parametrize(
    "fields",
    [{"mtp": 0}, {"mtp": 17}, {"mtp": True}, {"mtp": "3"}, {"num_speculative_tokens": 17}],
)
def test_bad_field_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        choose(**fields)
