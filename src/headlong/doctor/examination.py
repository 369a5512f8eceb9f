"""The examination: every check in order, each on what the ones before it could load.

In:  a `ExamOptions`. Out: an `Examination` with all findings, told one by one as they come.
A check that finds a part missing is skipped with the reason; a check that breaks is itself a
finding. How much text is decoded follows from what one pass costs here, so that a slow model takes
no longer than a fast one.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from headlong.config import SamplingParams
from headlong.doctor import draft_checks, head_checks, machine, model_checks, probe, speed
from headlong.doctor.alternatives import list_alternatives, taps_needed
from headlong.doctor.draft_checks import Judged
from headlong.doctor.exactness import Decoder, check_exactness, decode_modes
from headlong.doctor.finding import Check, Finding, Severity, refused, skipped
from headlong.doctor.head_checks import read_record
from headlong.doctor.subject import ExamOptions, Subject
from headlong.errors import HeadlongError
from headlong.models.transformer import Backbone

Tell: TypeAlias = Callable[[str, Finding], None]
"""Takes a section's title and one finding."""

_BUDGET_S, _QUICK_BUDGET_S = 12.0, 4.0
"""Seconds that decoding may take; the other checks take about as long again."""

_MIN_TOKENS, _MAX_TOKENS, _QUICK_MAX_TOKENS = 24, 64, 40
_FIRST_TIMING_S = 0.3
_SPEED_REPEATS = 3


@dataclass(slots=True)
class Examination:
    """All findings of one options, in order."""

    subject: Subject
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    judged: Judged | None = None
    """How the head's drafts fared, where that could be measured."""
    seconds: float = 0.0

    @property
    def num_faults(self) -> int:
        """How many checks found something broken."""
        return sum(finding.level is Severity.FAULT for _, finding in self.findings)

    @property
    def num_warnings(self) -> int:
        """How many checks found something that could be better."""
        return sum(finding.level is Severity.WARNING for _, finding in self.findings)

    def number(self, check: str, name: str) -> Any:
        """Return a number that a check found; None when it did not."""
        for _, finding in self.findings:
            if finding.check == check and name in finding.numbers:
                return finding.numbers[name]
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        subject = self.subject
        return {
            "healthy": self.num_faults == 0,
            "num_faults": self.num_faults,
            "num_warnings": self.num_warnings,
            "model": None if subject.path is None else subject.path.name,
            "head": subject.origin,
            "backend": subject.ops.name,
            "acceptance_length": self.number("drafts", "acceptance_length"),
            "best_k": self.number("best K", "best_k"),
            "expected_speedup": self.number("best K", "speedup"),
            "seconds": self.seconds,
            "findings": [{"section": title, **f.to_dict()} for title, f in self.findings],
        }


@dataclass(frozen=True, slots=True)
class ExamEffort:
    """How much is decoded."""

    num_prompts: int
    num_exact_prompts: int
    max_tokens: int
    timing_s: float


def examine(
    subject: Subject, on_finding: Tell, on_check: Callable[[str], None] = lambda what: None
) -> Examination:
    """Run all checks; report each finding, and before it the name of the check."""
    started = time.perf_counter()
    examination = Examination(subject)

    def run(title: str, what: str, check: Callable[[], Finding | Iterable[Finding]]) -> None:
        on_check(what)
        for finding in _guarded(what, check):
            examination.findings.append((title, finding))
            on_finding(title, finding)

    for what, machine_check in _machine_checks(subject):
        run("machine", what, machine_check)
    run("model", "model", partial(model_checks.check_model, subject))
    run("model", "tokenizer", partial(model_checks.check_tokenizer, subject))
    for what, head_check in (
        ("head", head_checks.check_presence),
        ("head weights", head_checks.check_numbers),
        ("draft vocabulary", head_checks.check_vocabulary),
        ("trained for", head_checks.check_stale),
    ):
        run("head", what, partial(head_check, subject))
    if "draft model" in subject.refusals:
        error = subject.refusals["draft model"]
        run("head", "draft model", lambda: refused("draft model", error))
    if subject.backbone is None:
        run("drafts", "drafts", lambda: skipped("drafts", "the model could not be loaded"))
    else:
        _examine_running(examination, subject.backbone, run)
    examination.seconds = time.perf_counter() - started
    return examination


def _examine_running(
    examination: Examination,
    backbone: Backbone,
    run: Callable[[str, str, Callable[[], Finding | Iterable[Finding]]], None],
) -> None:
    """Run the checks that need the model to speak."""
    subject = examination.subject
    texts: list[probe.ProbeText] = []
    efforts: list[ExamEffort] = []

    def listen() -> Iterator[Finding]:
        efforts.append(_plan_effort(backbone, subject.options))
        texts.extend(_write_texts(subject, backbone, efforts[0]))
        if subject.head is not None:
            examination.judged = _judge(subject, backbone, texts)
            yield from _draft_findings(subject, backbone, examination.judged)
        elif subject.draft_model is None:
            yield skipped("drafts", "there is no head to ask")

    run("drafts", "what the model says, and what the head foresees", listen)
    if not texts:
        return  # said above: the model cannot speak
    effort = efforts[0]
    prompts = [text.prompt_ids for text in texts[: effort.num_exact_prompts]]
    decoder = Decoder(backbone, subject.make_drafter("auto"), _eos_ids(subject), effort.max_tokens)
    run(
        "exactness",
        "whether the text is the same with MTP on and off",
        lambda: check_exactness(decoder, list(decode_modes(decoder, prompts))),
    )
    run(
        "speed",
        "what passes and drafts cost",
        lambda: _speed_findings(examination, decoder, prompts[0], effort),
    )


def _guarded(what: str, check: Callable[[], Finding | Iterable[Finding]]) -> Iterator[Finding]:
    """Run a check; whatever goes wrong in it is a finding, never the end of the examination."""
    try:
        found = check()
        yield from [found] if isinstance(found, Finding) else found
    except HeadlongError as error:
        yield refused(what, error)
    except Exception as error:
        problem = f"This check itself broke: {type(error).__name__}: {error}"
        yield Check(what).fault(
            problem, "It is a bug in headlong; please report it with this line."
        )


def _machine_checks(subject: Subject) -> list[tuple[str, Callable[[], Finding]]]:
    readings, ops = machine.read_machine(), subject.ops
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("backend", lambda: machine.check_backend(ops, subject.options.backend)),
        ("instruction set", lambda: machine.check_instruction_set(ops)),
        ("threads", lambda: machine.check_threads(ops, readings)),
        ("load", lambda: machine.check_load(readings)),
        ("huge pages", lambda: machine.check_huge_pages(ops, readings)),
    ]
    backbone = subject.backbone
    if backbone is not None:
        context = backbone.config.context_length
        caches = [backbone.make_cache()]
        caches += [] if subject.head is None else [subject.head.make_cache()]
        needed = sum(cache.bytes_for(context) for cache in caches)
        checks.append(("memory", lambda: machine.check_memory(readings, needed, context)))
    return checks


def _plan_effort(backbone: Backbone, options: ExamOptions) -> ExamEffort:
    """Choose how much is decoded so that it takes about as long on every machine."""
    # The mean, neighbours and all: that is how long it will take.
    one_pass_s = statistics.fmean(speed.time_passes(backbone, (), _FIRST_TIMING_S)[1])
    if not options.is_quick:
        thorough = _afford(one_pass_s, len(probe.PROMPTS), 2, _BUDGET_S, _MAX_TOKENS)
        if options.is_thorough:
            return replace(thorough, max_tokens=_MAX_TOKENS)
        if thorough.max_tokens >= _MIN_TOKENS:
            return thorough
    quick = _afford(one_pass_s, 3, 1, _QUICK_BUDGET_S, _QUICK_MAX_TOKENS)
    return replace(quick, max_tokens=max(quick.max_tokens, _MIN_TOKENS))


def _afford(
    one_pass_s: float, num_prompts: int, num_exact: int, budget_s: float, most: int
) -> ExamEffort:
    """Return an effort that keeps to a budget, however few tokens that leaves."""
    # Answers, then two temperatures in: the plain loop, four modes alone, and a batch.
    passes_per_token = num_prompts + 2 * num_exact * 6 + 2 * _SPEED_REPEATS
    affordable = int(budget_s / (one_pass_s * passes_per_token))
    return ExamEffort(num_prompts, num_exact, min(affordable, most), budget_s / 6)


def _write_texts(
    subject: Subject, backbone: Backbone, effort: ExamEffort
) -> Iterator[probe.ProbeText]:
    for task, prompt in list(probe.PROMPTS.items())[: effort.num_prompts]:
        ids = probe.prompt_ids(subject.tokenizer, prompt, backbone)
        answer = probe.write_answer(
            backbone, ids, _eos_ids(subject), effort.max_tokens, SamplingParams()
        )
        yield probe.ProbeText(task, ids, answer)


def _judge(subject: Subject, backbone: Backbone, texts: Sequence[probe.ProbeText]) -> Judged:
    assert subject.head is not None
    taps = taps_needed(subject.head, backbone.config.num_layers)
    probed = [probe.read_rows(backbone, text, taps) for text in texts]
    shortest = min(len(text.answer_ids) for text in texts)
    depth = speed.MAX_K if shortest >= 4 * speed.MAX_K else draft_checks.PROBE_DEPTH
    return Judged(subject.head, probe.measure_acceptance(subject.head, probed, depth), probed)


def _draft_findings(subject: Subject, backbone: Backbone, judged: Judged) -> Iterator[Finding]:
    yield draft_checks.check_alive(judged)
    yield draft_checks.check_coverage(judged)
    quant = judged.head.report.quant
    as_stored = judged.head if quant is None else subject.build_head("stored")
    yield draft_checks.check_precision(judged, as_stored, quant)
    weights = None if subject.weights is None else replace(subject.weights, quant=quant)
    others = list(list_alternatives(judged.head, weights, backbone))
    record = None if subject.head_folder is None else read_record(subject.head_folder)
    yield draft_checks.check_reading(judged, others, record)
    if record is not None:
        yield draft_checks.check_record(judged, record)


def _speed_findings(
    examination: Examination, decoder: Decoder, ids: tuple[int, ...], effort: ExamEffort
) -> Iterator[Finding]:
    subject, judged = examination.subject, examination.judged
    taps = () if subject.head is None else subject.head.tap_layers
    curve = speed.undisturbed(speed.time_passes(decoder.backbone, taps, effort.timing_s))
    yield speed.check_pass_cost(curve)
    if subject.head is None and subject.draft_model is None:
        yield skipped("best K", "n-grams alone draft; what they gain depends on the text")
        return
    alone = replace(decoder, drafter=subject.make_drafter("head"))
    cost, stats = speed.measure_drafts(alone, ids, _SPEED_REPEATS)
    length = speed.length_by_stats(stats)
    if judged is not None:
        length = judged.acceptance.length
    elif stats.rounds:
        yield draft_checks.judge_lengths(stats.acceptance_at_depth, "draft model", {})
    yield speed.check_gain(curve, cost, length)


def _eos_ids(subject: Subject) -> frozenset[int]:
    return frozenset() if subject.tokenizer is None else subject.tokenizer.eos_ids
