import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.server import setting_kinds as kinds
from headlong.server.setting_kinds import Kind


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("8000000", 8_000_000),
        ("8MB", 8_000_000),
        ("8 MiB", 8 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("2g", 2 * 10**9),
        ("64k", 64_000),
    ],
)
def test_sizes_may_have_units(text: str, num_bytes: int) -> None:
    assert kinds.size(1024).read(text) == num_bytes


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (kinds.whole(1, 9), 10),
        (kinds.whole(1, 9), 0),
        (kinds.whole(1, 9), "ten"),
        (kinds.whole(1, 9), 2.5),
        (kinds.whole(1, 9), True),
        (kinds.seconds(0, 60), "soon"),
        (kinds.seconds(0, 60), -1),
        (kinds.seconds(0, 60), float("nan")),
        (kinds.seconds(0), float("inf")),
        (kinds.size(1024), "8 pages"),
        (kinds.size(1024), 1023),
        (kinds.truth(), "perhaps"),
        (kinds.truth(), 1),
        (kinds.word("a", "b"), "c"),
        (kinds.text("letters", "[a-z]+"), "A"),
        (kinds.texts("letters", "[a-z]+", "X"), "a,B"),
        (kinds.texts("letters", "[a-z]+", "X"), [1]),
        (kinds.mtp(), "17"),
        (kinds.mtp(), "0"),
        (kinds.mtp(), "always"),
        (kinds.optional(kinds.whole(1)), 0),
    ],
)
def test_what_is_not_allowed_is_refused(kind: Kind, wrong: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the words are added by whoever knows the place
        kind.read(wrong)


def test_words_of_the_environment_become_values() -> None:
    assert kinds.truth().read(" Yes ") is True
    assert kinds.truth().read("0") is False
    assert kinds.mtp().read("4") == 4
    assert kinds.mtp().read("off") == "off"
    assert kinds.optional(kinds.seconds(0)).read("none") is None
    assert kinds.seconds(0).read("2.5s") == 2.5
    assert kinds.texts("letters", "[a-z]+", "X").read(["a", "b, c"]) == ("a", "b", "c")


@given(st.integers(min_value=-(10**9), max_value=10**9))
def test_a_number_and_its_text_are_read_alike(number: int) -> None:
    kind = kinds.whole(-(10**9))
    assert kind.read(number) == kind.read(str(number)) == number
