"""The stages of training a head: generate, train, evaluate. Each can be run alone and resumed.

In:  a recipe, a model file, prompt files, a work folder, a time limit.
Out: shards, training state and log in the work folder; a head folder with run.json.
Stages exchange data through files only, so they can run in separate calls or on other machines.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headlong.arrays import IntArray
from headlong.errors import RequestError
from headlong.heads.fingerprint import fingerprint
from headlong.heads.head_weights import list_names
from headlong.text.tokenizer import Tokenizer, load_tokenizer
from headlong.train.calibrate import fit_logit_scale
from headlong.train.conversations import Conversations
from headlong.train.draft_vocabulary import (
    DraftVocabulary,
    choose_vocabulary,
    load_vocabulary,
    placeholder_ids,
)
from headlong.train.estimate import Estimator, available_bytes
from headlong.train.evaluation import (
    Samples,
    compare_depths,
    evaluate_head,
    sample_bench,
    shorten,
)
from headlong.train.export import (
    ASKED_FILE,
    RUN_FILE,
    add_to_run,
    describe_data,
    export_head,
    hash_file,
    head_weights,
    read_prompt_records,
    split_weights,
    write_run,
)
from headlong.train.generate import GenerationPlan, generate_answers
from headlong.train.held_out import count_sets, leave_out
from headlong.train.initial_weights import adapt_recipe, build_head, read_initial_weights
from headlong.train.plan import TrainPlan
from headlong.train.progress import LoggedReport, Report
from headlong.train.prompt_files import read_prompts
from headlong.train.recipe import Recipe
from headlong.train.recorded_states import room_for_states
from headlong.train.rows import RowMaker
from headlong.train.shards import Answers, ShardWriter, read_shards, shard_files
from headlong.train.teacher import Teacher, can_compile, find_device, find_dtype, load_teacher
from headlong.train.torch_head import TorchHead, recorded_taps
from headlong.train.trainer import Trainer
from headlong.train.workload import read_workload, recorded_share
from headlong.weights.checkpoint import open_checkpoint

STAGES = ("generate", "train", "evaluate")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of one call, besides the recipe."""

    model: Path
    work: Path
    out: Path
    prompt_files: tuple[Path, ...] = ()
    bench_file: Path | None = None
    from_head: Path | None = None
    """Start from this head instead of the backbone's last layer."""
    from_native: bool = False
    """Start from the model's own MTP layer."""
    device: str = "auto"
    time_limit_s: float = 24 * 3600.0
    """Wall-clock seconds for all stages of this call."""
    dtype: str = "auto"
    """float32, bfloat16, or auto: bfloat16 if the device has instructions to multiply it."""
    compile: bool = True
    """Fuse pointwise functions with torch.compile, if it works on the device."""
    triton: bool = True
    """Use the Triton attention kernel, on CUDA."""
    split: bool = False
    """Also write the head's weights in small parts."""


class Pipeline:
    """One call: loads the backbone, then runs stages."""

    def __init__(self, recipe: Recipe, options: RunOptions, report: Report) -> None:
        self.options = options
        self.report = LoggedReport(report, options.work / "log.jsonl")
        self._started = time.monotonic()
        self._shards = options.work / "answers"
        self.device = find_device(options.device)
        checkpoint = open_checkpoint(options.model)
        self._initial = read_initial_weights(
            checkpoint, recipe, options.from_head, from_native=options.from_native
        )
        self.tokenizer: Tokenizer = load_tokenizer(checkpoint)
        dtype = find_dtype(options.dtype, self.device)
        compile = options.compile and can_compile(self.device)
        self.teacher: Teacher = load_teacher(checkpoint, self.device, compile=compile, dtype=dtype)
        self._rows = RowMaker(self.teacher, checkpoint, self.tokenizer.eos_ids, options.triton)
        answers = replace(recipe.answers, num_rows=self._rows.num_rows(recipe.answers))
        self.recipe = adapt_recipe(replace(recipe, answers=answers), self._initial)
        tasks = recipe.prompts.tasks
        read = (p for f in options.prompt_files for p in read_prompts(f))
        prompts = [p for p in read if not tasks or p.task in tasks]
        self._bench = [] if options.bench_file is None else read_prompts(options.bench_file)
        self.prompts, self._left_out = leave_out(prompts, self._bench)
        is_cuda = self.device.type == "cuda"
        self._device_name = torch.cuda.get_device_name() if is_cuda else "CPU"
        self.report.say(
            f"{options.model.name} on {self._device_name}, torch {torch.__version__}, "
            f"{len(self.prompts)} prompts, loaded in {self._elapsed():.1f} s"
        )
        if self._left_out:
            self.report.say(
                f"{len(self._left_out)} prompts share text with {options.bench_file} and are left "
                f"out: {count_sets(self._left_out)}"
            )

    def run(self, stages: Sequence[str]) -> dict[str, Any]:
        """Run the stages in order; return the results of the evaluation, if it ran."""
        results: dict[str, Any] = {}
        for stage in stages:
            if stage == "generate":
                self.generate()
            elif stage == "train":
                self.train()
            elif stage == "evaluate":
                results = self.evaluate()
            else:
                problem = f"There is no stage {stage!r}."
                raise RequestError(problem, f"Stages are {', '.join(STAGES)}.")
        return results

    def plan(self, stages: Sequence[str]) -> TrainPlan:
        """Estimate the time and memory of stages, with a few trial steps on this device."""
        available = available_bytes(self.teacher)
        size = min(self.recipe.head.draft_vocab_size, self.teacher.config.vocab_size)
        workload = read_workload(
            self.options.work,
            self.prompts,
            self._bench,
            self.tokenizer,
            self.recipe,
            evaluates_before=self._initial is not None,
        )
        estimator = Estimator(
            self.teacher,
            self.recipe,
            workload,
            self._rows,
            lambda: self._new_trainer(placeholder_ids(size, self._initial_ids)),
            self._recorded_taps,
            recorded_share(self._shards, self.teacher.config.hidden_size, self._recorded_taps),
        )
        planned = tuple(getattr(estimator, stage)() for stage in stages)
        return TrainPlan(self._device_name, available, self.options.time_limit_s, planned)

    def generate(self) -> None:
        """Let the backbone answer prompts until there are enough answers or time is up."""
        earlier = read_shards(self._shards) if shard_files(self._shards) else None
        recipe = self.recipe
        if self._left_out and not self.prompts and recipe.prompts.self_written_share < 1:
            raise RequestError(
                f"All {len(self._left_out)} prompts share text with {self.options.bench_file}.",
                "Give different prompts to --prompts and --bench.",
            )
        conversations = Conversations(
            self.prompts, self.tokenizer, recipe, earlier.next_prompt if earlier else 0
        )
        capacity = recipe.prompts.max_tokens + recipe.answers.max_tokens
        sampler = self._rows.generator(recipe.answers.num_rows, capacity, self._recorded_taps)
        self.report.say(f"{sampler.num_rows} rows of {capacity} tokens, {sampler.note}")
        self.report.say(f"generate: ready after {self._elapsed():.1f} s")
        plan = GenerationPlan(
            recipe.answers.tokens_wanted,
            earlier.num_answer_tokens if earlier else 0,
            self._time_left(),
            recipe.answers.refill_every,
        )
        writer = ShardWriter(self._shards, room_for_states(self._shards))
        self._record_prompts()
        count = generate_answers(sampler, conversations, writer, plan, self.report)
        speed = count.num_written / max(count.seconds, 1e-9)
        self.report.say(
            f"generate: {count.num_answers} answers, {count.num_tokens:,} answer tokens in "
            f"{count.seconds:.0f} s, {speed:,.0f} tokens/s generated"
        )

    def train(self) -> None:
        """Train the head on the answers; export it at the end of the call."""
        answers = self._read_answers()
        vocabulary = self._load_vocabulary(answers)
        trainer = self._make_trainer(vocabulary)
        num_recorded = trainer.use_recorded(answers)
        self.report.say(
            f"train: {len(answers)} answers, {answers.num_answer_tokens:,} answer tokens; "
            f"hidden states of {num_recorded} answers on disk; "
            f"{len(vocabulary.ids)} draft tokens cover {vocabulary.coverage:.2%}; "
            f"from step {trainer.state.step}, {trainer.share_done:.0%} of the schedule done, "
            f"ready after {self._elapsed():.1f} s"
        )
        if trainer.head.frozen:
            self.report.say(f"train: these tensors stay frozen: {list_names(trainer.head.frozen)}")
        trainer.train(answers, self._state_path, self._time_left(), self.report)
        scale = self._calibrate(trainer, vocabulary, answers)
        self._export(trainer, vocabulary, answers, scale)

    def evaluate(self) -> dict[str, Any]:
        """Simulate decoding on bench prompts and write the results to files."""
        if self.options.bench_file is None:
            raise RequestError("There are no prompts to evaluate on.", "Give --bench FILE.")
        vocabulary = self._load_vocabulary(None)
        trainer, answers = self._make_trainer(vocabulary), self._read_answers()
        trainer.use_recorded(answers)
        self._calibrate(trainer, vocabulary, answers)
        samples = sample_bench(self._rows, self.tokenizer, self._bench, self.recipe)
        evaluation = self._simulate(trainer.head, vocabulary, samples)
        if self._initial is not None:
            head = build_head(self.recipe, self.teacher, vocabulary.ids, self._initial)
            self.report.say("before training")
            evaluation["before"] = self._simulate(head, vocabulary, samples)
            self.report.say(compare_depths(evaluation["before"], evaluation))
        self.options.out.mkdir(parents=True, exist_ok=True)
        path = self.options.out / "evaluation.json"
        path.write_text(json.dumps(evaluation, indent=2) + "\n", encoding="utf-8")
        results = shorten(evaluation)
        add_to_run(self.options.out / RUN_FILE, {"acceptance": results})
        return results

    def _simulate(
        self, head: TorchHead, vocabulary: DraftVocabulary, samples: Samples
    ) -> dict[str, Any]:
        """Simulate decoding with a head along the backbone's answers."""
        return evaluate_head(self.teacher, head, vocabulary, samples, self.recipe, self.report)

    def _record_prompts(self) -> None:
        """Record the prompts of this call, for run.json; answers may need many calls."""
        bench = self.options.bench_file
        record = {
            "prompts": len(self.prompts),
            "held_out": None if bench is None else {bench.name: hash_file(bench)},
            "left_out": count_sets(self._left_out),
        }
        with (self.options.work / ASKED_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    @property
    def _state_path(self) -> Path:
        return self.options.work / "training.pt"

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _time_left(self) -> float:
        return max(1.0, self.options.time_limit_s - self._elapsed())

    def _read_answers(self) -> Answers:
        answers = read_shards(self._shards)
        for shard in answers.damaged:
            self.report.say(f"skipped a damaged shard: {shard}")
        return answers

    @property
    def _initial_ids(self) -> IntArray | None:
        return None if self._initial is None else self._initial.weights.vocabulary

    @property
    def _recorded_taps(self) -> tuple[int, ...] | None:
        """The tap layers to record; None where nothing is recorded.

        The engine records, but not for a model's own MTP layer, which reads other rows.
        """
        is_native = self._initial is not None and self._initial.is_native
        if is_native or not self._rows.uses_engine:
            return None
        return recorded_taps(self.recipe.head, self.teacher.config.num_layers)

    def _load_vocabulary(self, answers: Answers | None) -> DraftVocabulary:
        """Load the draft vocabulary; the first call chooses it."""
        required, size = self._initial_ids, self.recipe.head.draft_vocab_size

        def choose() -> DraftVocabulary:
            counted = answers or self._read_answers()
            return choose_vocabulary(counted, self.teacher.config.vocab_size, size, required)

        return load_vocabulary(self.options.work / "vocabulary.npz", required, choose)

    def _new_trainer(self, ids: IntArray) -> Trainer:
        """Return a trainer before its first step."""
        torch.manual_seed(self.recipe.seed)
        head = build_head(self.recipe, self.teacher, ids, self._initial)
        return Trainer(self.teacher, head, torch.from_numpy(ids), self.recipe)

    def _make_trainer(self, vocabulary: DraftVocabulary) -> Trainer:
        trainer = self._new_trainer(vocabulary.ids)
        if self._state_path.is_file():
            trainer.restore(self._state_path)
        return trainer

    def _calibrate(self, trainer: Trainer, vocabulary: DraftVocabulary, answers: Answers) -> float:
        """Fit and apply the scale of the head's logits; the saved state is not changed."""
        ids = torch.from_numpy(vocabulary.ids)
        scale: float = fit_logit_scale(
            self.teacher, trainer.head, ids, answers, trainer.hidden_rows
        )
        trainer.head.scale_logits(scale)
        self.report.say(f"calibration: logits scaled by {scale}")
        return scale

    def _export(
        self, trainer: Trainer, vocabulary: DraftVocabulary, answers: Answers, scale: float
    ) -> None:
        out = self.options.out
        weights = head_weights(trainer.head, self.recipe.head, vocabulary.ids)
        num_bytes = export_head(out, weights)
        parts = split_weights(out) if self.options.split else []
        details = {
            "training": {
                "steps": trainer.state.step,
                "seconds": trainer.state.seconds,
                "epochs": trainer.state.epoch,
                "share_of_schedule": trainer.share_done,
            },
            "started_from": None if self._initial is None else self._initial.describe(),
            "logit_scale": scale,
            "backbone_fingerprint": fingerprint(self.teacher.backbone),
            "vocabulary_coverage": vocabulary.coverage,
            "data": {
                **describe_data(answers, self.prompts, self.options.prompt_files),
                "asked": read_prompt_records(self.options.work),
            },
        }
        write_run(out / RUN_FILE, self.recipe, self.options.model, details)
        cut = f" and in {len(parts)} parts" if parts else ""
        self.report.say(f"train: wrote a head of {num_bytes / 1e6:.1f} MB to {out}{cut}")
