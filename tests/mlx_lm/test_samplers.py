"""Samplers and processors are named options, with mlx-lm's meaning of their numbers."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from headlong import make_logits_processors, make_sampler
from headlong.errors import RequestError
from headlong.mlx_lm.samplers import named_options


def test_a_top_p_of_0_keeps_all_as_in_mlx_lm() -> None:
    options = {"temperature": 0.5, "top_p": 1.0, "min_p": 0.0, "top_k": 0}
    assert named_options(make_sampler(0.5), None) == options
    assert named_options(make_sampler(0.5, 1.0), [])["top_p"] == 1.0
    assert named_options(make_sampler(0.5, 0.9, 0.1, 1, 7), None) == {
        "temperature": 0.5,
        "top_p": 0.9,
        "min_p": 0.1,
        "top_k": 7,
    }


def test_processors_and_sampler_are_taken_together() -> None:
    processors = make_logits_processors({3: 1.0}, presence_penalty=0.5, frequency_penalty=0.0)
    options = named_options(make_sampler(), processors)
    assert options["logit_bias"] == {3: 1.0}
    assert options["presence_penalty"] == 0.5
    assert options["temperature"] == 0
    assert "frequency_penalty" not in options


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (make_sampler, {"xtc_probability": 0.5}, "xtc_probability"),
        (make_sampler, {"min_tokens_to_keep": 3}, "min_tokens_to_keep is 3"),
        (
            make_logits_processors,
            {"repetition_penalty": 1.1, "repetition_context_size": 20},
            "repetition_context_size is 20.* whole text",
        ),
        (
            make_logits_processors,
            {"frequency_penalty": 1.1, "frequency_context_size": 20},
            "frequency_context_size is 20",
        ),
        (make_sampler, {"temperature": 1}, "Unknown option 'temperature'"),
        (make_logits_processors, {"penalty": 20}, "Unknown option 'penalty'"),
    ],
)
def test_what_has_no_counterpart_is_refused(
    make: Callable[..., Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        make(**options)


def test_arguments_without_effect_are_taken() -> None:
    assert make_sampler(1.0, xtc_probability=0.0, xtc_threshold=0.1) == make_sampler(1.0)
    assert make_logits_processors(presence_context_size=None) == []
    assert make_logits_processors(None, None, 20) == [], "a window of no penalty"


def test_arguments_stand_in_mlx_lm_s_order() -> None:
    """By place, the third of processors is a window; taken for a penalty it would ruin the text."""
    with pytest.raises(RequestError, match="repetition_context_size is 20"):
        make_logits_processors({3: 1.0}, 1.1, 20)
    (processor,) = make_logits_processors({3: 1.0}, 1.1, None, 0.5, None, 0.25)
    assert processor.options == {
        "logit_bias": {3: 1.0},
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
    }


def test_places_of_arguments_are_those_of_mlx_lm() -> None:
    theirs: Any = pytest.importorskip("mlx_lm.sample_utils")
    for own in (make_sampler, make_logits_processors):
        other = getattr(theirs, own.__name__)
        *names, others = inspect.signature(own).parameters
        assert others == "others"
        assert names == list(inspect.signature(other).parameters)[: len(names)]
