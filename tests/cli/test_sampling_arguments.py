import argparse
from dataclasses import fields
from typing import Any

import pytest

from headlong.cli.sampling_arguments import (
    add_mtp_argument,
    add_sampling_arguments,
    check_options,
    parse_mtp,
    read_field_help,
    read_generate_options,
)
from headlong.config import SamplingParams, StopParams
from headlong.errors import RequestError


def read(*argv: str) -> dict[str, Any]:
    """Parse options as a verb would."""
    parser = argparse.ArgumentParser()
    add_mtp_argument(parser)
    add_sampling_arguments(parser)
    return dict(read_generate_options(parser.parse_args(argv)))


@pytest.mark.parametrize("params", [SamplingParams, StopParams])
def test_every_field_has_its_docstring_as_help(params: type[SamplingParams | StopParams]) -> None:
    texts = read_field_help(params)
    assert texts.keys() == {field.name for field in fields(params)}
    assert all(text.endswith(".") for text in texts.values())


def test_options_not_given_are_left_to_their_defaults() -> None:
    assert read() == {"mtp": "auto"}


def test_given_options_have_their_types() -> None:
    argv = ["--top-k", "5", "--top-p", "0.5", "--stop", "a", "--stop", "b", "--ignore-eos"]
    assert read(*argv, "--logit-bias", "3=-1.5", "--logprobs", "0", "--mtp", "off") == {
        "top_k": 5,
        "top_p": 0.5,
        "stop": ["a", "b"],
        "ignore_eos": True,
        "logit_bias": {3: -1.5},
        "logprobs": 0,
        "mtp": "off",
    }


def test_mtp_is_read_as_typed() -> None:
    assert [parse_mtp(text) for text in ("auto", "off", "7")] == ["auto", "off", 7]
    for wrong in ("0", "-1", "17", "on", ""):
        with pytest.raises(RequestError, match="mtp is"):
            parse_mtp(wrong)


def test_impossible_values_are_refused_at_once() -> None:
    with pytest.raises(RequestError, match="top_p is"):
        check_options({"top_p": 2.0})
    with pytest.raises(RequestError, match="stop strings"):
        check_options({"stop": ["x"] * 17, "mtp": "auto"})
