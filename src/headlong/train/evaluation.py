"""Evaluation after training: the backbone answers held-out prompts, the head is judged on them.

In:  bench prompts, a sampler, a head. Out: acceptance by task, temperature and K, and what smaller
draft vocabularies would cost. A simulation on the GPU; `headlong eval-head` decodes for real.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from headlong.decode.stats import DecodeStats
from headlong.text.tokenizer import Tokenizer
from headlong.train.draft_vocabulary import DraftVocabulary
from headlong.train.generate import answer_all
from headlong.train.progress import Report
from headlong.train.prompt_files import Prompt, read_frame
from headlong.train.recipe import Recipe
from headlong.train.sampler import Job, Sampler
from headlong.train.simulate import Sample, Simulator, table
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead

Samples: TypeAlias = dict[float, dict[str, list[Sample]]]
"""By temperature, then by task."""

CUTS = (4096, 6144, 8192, 10240)
"""Smaller draft vocabularies that are tried on the side."""


def sample_bench(
    sampler: Sampler, tokenizer: Tokenizer, prompts: Sequence[Prompt], recipe: Recipe
) -> Samples:
    """Let the backbone answer bench prompts at every temperature asked for."""
    settings = recipe.evaluation
    frame = read_frame(tokenizer)
    jobs: list[Job] = []
    tasks: list[str] = []
    for number, prompt in enumerate(prompts):
        text = frame.frame(prompt.turns[0])
        ids = np.array(tokenizer.encode(text, add_special=False), dtype=np.int64)
        fits = len(ids) <= recipe.prompts.max_tokens
        if not fits or tasks.count(prompt.task) >= settings.prompts_per_task:
            continue
        jobs.append(Job(ids, settings.max_tokens, 0.0, seed=number))
        tasks.append(prompt.task)
    samples: Samples = {}
    for temperature in settings.temperatures:
        heated = [replace(job, temperature=temperature) for job in jobs]
        answers = answer_all(sampler, heated, recipe.answers.refill_every)
        by_task: dict[str, list[Sample]] = {}
        for task, job, ids in zip(tasks, heated, answers, strict=True):
            by_task.setdefault(task, []).append(Sample(job, ids))
        samples[temperature] = by_task
    return samples


def evaluate_head(
    teacher: Teacher,
    head: TorchHead,
    vocabulary: DraftVocabulary,
    samples: Samples,
    recipe: Recipe,
    report: Report,
) -> dict[str, Any]:
    """Simulate acceptance and say it as tables; return the numbers."""
    simulator = Simulator(teacher, head, vocabulary, recipe.evaluation.max_depth)
    found: dict[str, Any] = {}
    for temperature, by_task in samples.items():
        results = {task: simulator.run(items) for task, items in sorted(by_task.items())}
        report.say(f"temperature {temperature:g}\n{table(results)}")
        found[f"temperature_{temperature:g}"] = {
            task: {str(k): stats.to_dict() for k, stats in by_k.items()}
            for task, by_k in results.items()
        }
    first = next(iter(samples.values()), {})
    cuts: dict[str, dict[int, DecodeStats]] = {}
    for cut in (*(size for size in CUTS if size < len(vocabulary.ids)), len(vocabulary.ids)):
        narrowed = replace(simulator, vocabulary_cut=cut)
        cuts[f"{cut} draft tokens"] = narrowed.run([s for items in first.values() for s in items])
    report.say(f"all tasks, smaller draft vocabularies\n{table(cuts)}")
    found["vocabulary_cuts"] = {
        name: {str(k): stats.acceptance_length for k, stats in by_k.items()}
        for name, by_k in cuts.items()
    }
    return found


def shorten(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return acceptance lengths only, for K = 1, 2, …, by temperature and task."""
    return {
        name: {
            task: [round(stats["acceptance_length"], 3) for stats in by_k.values()]
            for task, by_k in by_task.items()
        }
        for name, by_task in results.items()
        if name.startswith("temperature_")
    }
