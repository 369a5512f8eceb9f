"""No evaluation prompt is among the training prompts."""

import json
import os
from pathlib import Path

import pytest

from headlong.train.held_out import RUN_WORDS, count_sets, leave_out
from headlong.train.prompt_files import Prompt, read_prompts
from headlong.weights.head_folders import SHIPPED
from headlong.weights.store import hash_file

REAL_FILES = Path(
    os.environ.get("HEADLONG_PROMPTS", Path(__file__).parents[2].parent / "shared/prompts")
)
"""Prompts are not in the repository; where they exist, shipped heads are checked against them."""

UNRECORDED = {"json_extraction_wiki": 2}
"""Overlap in the data of heads that were trained before prompts were left out: two prompts ask for
facts as JSON from a passage about which a development prompt asks a question."""

PASSAGE = " ".join(f"word{number}" for number in range(RUN_WORDS))


def prompt(*turns: str, set_name: str = "made-up") -> Prompt:
    """Return a prompt."""
    return Prompt(turns, set_name, "chat")


@pytest.mark.parametrize(
    "asked",
    [
        "How tall is K2?",
        "how  tall is\nK2",
        f"Summarise: {PASSAGE}.",
        f"Other words, then\n\n> {PASSAGE.upper().replace(' ', ', ')} and more",
    ],
)
def test_prompts_that_share_text_are_left_out(asked: str) -> None:
    held_out = [prompt("How tall is K2?"), prompt("Hello.", f"Translate this: {PASSAGE}")]
    others = [prompt("How tall is K3?"), prompt("Hello."), prompt("")]
    kept, left_out = leave_out([*others, prompt(asked, set_name="same")], held_out)
    assert kept == others
    assert count_sets(left_out) == {"same": 1}


def test_a_shorter_common_run_is_no_overlap() -> None:
    nearly = PASSAGE.removesuffix(f"word{RUN_WORDS - 1}")
    asked = [prompt(f"{nearly} other"), prompt("Answer with the code only.")]
    held_out = [prompt(f"And {PASSAGE}"), prompt("Sort a list. Answer with the code only.")]
    assert leave_out(asked, held_out) == (asked, [])
    assert leave_out(asked, []) == (asked, [])


@pytest.mark.skipif(not REAL_FILES.is_dir(), reason="the prompt files are not here")
@pytest.mark.parametrize("record", sorted(SHIPPED.glob("*/run.json")), ids=lambda p: p.parent.name)
def test_no_development_prompt_is_in_the_data_of_a_shipped_head(record: Path) -> None:
    data = json.loads(record.read_text())["data"]
    files = [REAL_FILES / name for name in data["prompt_files"]]
    found = {file.name: hash_file(file) for file in files if file.is_file()}
    if found != data["prompt_files"]:
        pytest.skip("its prompt files are not here")
    bench = REAL_FILES / "bench.jsonl"
    left_out = leave_out([one for file in files for one in read_prompts(file)], read_prompts(bench))
    shared = count_sets(left_out[1])
    calls = data.get("asked", [])
    if not calls:
        assert shared == UNRECORDED
    for call in calls:
        assert call["held_out"] == {bench.name: hash_file(bench)}
        assert call["left_out"] == shared
