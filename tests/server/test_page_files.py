"""The files of the page: small, of their own host alone, with colours that can be told apart."""

import itertools
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "src" / "headlong" / "server" / "page"


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
def test_depth_colours_fall_in_lightness(theme: str) -> None:
    """Their order must survive colour blindness, which leaves lightness alone."""
    block = (FOLDER / "tokens.css").read_text().split(theme)[1].split("}")[0]
    colours = re.findall(r"--source-head-\d: #(\w{6});", block)
    weights = ((0.2126, 0), (0.7152, 2), (0.0722, 4))
    lightness = [
        sum(weight * (int(colour[i : i + 2], 16) / 255) ** 2.2 for weight, i in weights)
        for colour in colours
    ]
    assert len(lightness) == 8
    assert all(one > 1.08 * other for one, other in itertools.pairwise(lightness))


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
@pytest.mark.parametrize("ink", ["ink", "ink-2", "ink-3", "accent", "danger", "good"])
def test_words_stand_out_from_every_surface(theme: str, ink: str) -> None:
    """4.5 to 1 is what WCAG asks for text of this size."""
    block = (FOLDER / "tokens.css").read_text().split(theme)[1].split("}")[0]
    colours = dict(re.findall(r"--([\w-]+): #(\w{6});", block))
    for surface in ("paper", "surface", "sunken"):
        pair = sorted((luminance(colours[ink]), luminance(colours[surface])))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, surface


def luminance(colour: str) -> float:
    """Return the relative luminance of an sRGB colour as WCAG defines it."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_modules_stay_small_and_name_only_their_own_files() -> None:
    for file in sorted(FOLDER.iterdir()):
        text = file.read_text()
        assert len(text.splitlines()) <= 350, file.name
        for imported in re.findall(r'from "\./([\w.]+)"', text):
            assert (FOLDER / imported).is_file(), f"{file.name} imports {imported}"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)
        assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", text), file.name
