"""One measurement from beginning to end.

In:  sides, prompts, a plan, and what is known about the scene. Out: the document, whatever happened
on the way; with a folder also the files. The command line and other front doors only gather what
goes in here and show what comes out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headlong.bench.ab import Plan, make_questions, run_ab
from headlong.bench.identity import find_divergence
from headlong.bench.measure import Run, Side
from headlong.bench.prompt_sets import PromptSet
from headlong.bench.report_files import ResultFolder
from headlong.bench.rows import make_row
from headlong.bench.summary import Context, summarise
from headlong.bench.token_count import settle_tokens
from headlong.bench.verdict import Wording
from headlong.provenance import read_provenance


@dataclass(frozen=True, slots=True)
class Scene:
    """What is measured where."""

    wording: Wording
    setup: Mapping[str, Any]
    """Model, drafter, backend, or what is known of a server."""
    prompt_set: PromptSet
    notes: Sequence[str] = ()
    """Whole sentences that the user should know before trusting a number."""
    skipped: Sequence[str] = ()
    """Prompts that are not asked, each with the reason."""
    count: Callable[[str], int] | None = None
    """Counts the tokens of a text, where servers' own counts are not to be used."""
    folder: ResultFolder | None = None


def measure(
    sides: Sequence[Side], plan: Plan, scene: Scene, on_run: Callable[[Run], None]
) -> dict[str, Any]:
    """Put all questions to all sides; return the document, partial where it was stopped."""
    conditions = read_provenance()
    folder = scene.folder

    def note(run: Run) -> None:
        if folder is not None:
            folder.add(make_row(run))
        on_run(run)

    measured = run_ab(sides, plan, note)
    runs, counter = settle_tokens(measured.runs, scene.count)
    rows = [make_row(run) for run in runs]
    divergence = find_divergence(runs, sides[0].name)
    context = Context(
        wording=scene.wording,
        sides={side.name: side.label for side in sides},
        prompts={
            "source": scene.prompt_set.source,
            "num": len(plan.prompts),
            "hash": scene.prompt_set.hash,
            "skipped": list(scene.skipped),
        },
        settings=_describe_plan(plan),
        setup=scene.setup,
        conditions=conditions.to_dict(),
        token_counter=counter,
        num_planned=measured.num_planned,
        stopped=measured.stopped,
        notes=scene.notes,
        divergence=None if divergence is None else divergence.to_dict(),
    )
    document = summarise(rows, context)
    if folder is not None and rows:  # with nothing in it, the folder is free for another run
        folder.finish(document, rows)
    return document


def _describe_plan(plan: Plan) -> dict[str, Any]:
    """Return what was asked how often; limits that prompts bring along are those in use."""
    questions = make_questions(plan)
    return {
        "temperatures": sorted({question.temperature for question in questions}),
        "max_tokens": sorted({question.max_tokens for question in questions}),
        "num_runs": plan.num_runs,
        "seed": plan.seed,
        "time_budget_s": plan.time_budget_s,
    }
