"""End to end: a model's own MTP layer, tuned on the model's own answers."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headlong.doctor.subject import ExamOptions, load_subject
from headlong.errors import RequestError
from headlong.export.mtp_files import MtpRequest, convert_mtp_layers
from headlong.heads.head_files import load_head, read_head_weights
from headlong.heads.layer_head import LayerHead
from headlong.llm import LLM
from headlong.models.registry import load_backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.train.evaluation import Simulator, sample_bench
from headlong.train.pipeline import Pipeline, RunOptions
from headlong.train.prompt_files import read_prompts
from headlong.train.recipe import Recipe
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.progress import LogProgress
from native_heads import write_talking_folder
from quiet_report import QuietReport
from train_parts import cpu_options

WORDS = ("hello", "12", "hell", "good bye")


@dataclass(frozen=True)
class Run:
    """A finished run."""

    options: RunOptions
    recipe: Recipe
    said: str
    results: dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Recipe) -> Run:
    """A tiny Qwen3.5 whose MTP layer was tuned, and evaluated on its training prompts."""
    folder = tmp_path_factory.mktemp("native")
    model, prompts = write_talking_folder(folder / "model"), folder / "words.jsonl"
    records = [{"prompt": f"say {word}", "task": "words", "licence": "MIT"} for word in WORDS]
    prompts.write_text("\n".join(map(json.dumps, records)))
    options = cpu_options(model, folder, prompts, from_native=True)
    recipe = replace(tiny_recipe, training=replace(tiny_recipe.training, steps=40))
    Pipeline(recipe, options, QuietReport()).run(["generate", "train"])
    options, quiet = replace(options, bench_file=prompts), QuietReport()
    results = Pipeline(recipe, options, quiet).run(["evaluate"])
    return Run(options, recipe, "\n".join(quiet.lines), results)


def load(run: Run, backend: str = "numpy", quant: Any = "f16") -> LLM:
    """The model with its tuned layer."""
    head = str(run.options.out)
    return LLM.load(run.options.model, head=head, drafter="head", backend=backend, head_quant=quant)


def ask(llm: LLM, word: str, **options: Any) -> Any:
    """One answer."""
    said = [{"role": "user", "content": f"say {word}"}]
    return llm.generate(said, **{"temperature": 0, "max_tokens": 24, **options})


def test_acceptance_rises_and_both_evaluations_are_reported(run: Run) -> None:
    before, after = run.results["before"], run.results
    assert after["temperature_0"]["words"][2] > before["temperature_0"]["words"][2] + 0.5
    assert len(after["by_depth"]["temperature_0"]) == run.recipe.evaluation.max_depth
    shares = [sum(one["by_depth"]["temperature_0"]) for one in (before, after)]
    assert f"{1 + shares[0]:8.2f}" in run.said
    assert f"{1 + shares[1]:8.2f}" in run.said
    assert "accepted at depth, temperature 0" in run.said
    record = json.loads((run.options.out / "run.json").read_text())
    assert record["acceptance"] == run.results
    assert record["started_from"] == {"native": True}
    assert record["recipe"]["head"]["kind"] == "nextn"


def test_the_head_keeps_its_draft_vocabulary(run: Run) -> None:
    llm = load(run)
    assert isinstance(llm.head, LayerHead)
    assert llm.head.vocabulary is not None
    assert len(llm.head.vocabulary) == run.recipe.head.draft_vocab_size
    with_all = LLM.load(run.options.model, head=str(run.options.out), draft_vocabulary="full")
    assert isinstance(with_all.head, LayerHead)
    assert with_all.head.vocabulary is None


def test_doctor_loads_it_with_its_draft_vocabulary(run: Run) -> None:
    subject = load_subject(ExamOptions(model=str(run.options.model), head=run.options.out))
    assert subject.head is not None
    assert subject.head.vocabulary is not None
    assert len(subject.head.vocabulary) == run.recipe.head.draft_vocab_size


@pytest.mark.parametrize("backend", ["numpy", "native", "torch", "mlx"])
def test_the_text_is_the_same_with_and_without_it(run: Run, backend: str) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx.core")
    llm, num_accepted = load(run, backend, "auto"), 0
    for word in WORDS:
        for sampling in ({}, {"temperature": 0.8, "seed": 5}):
            plain = ask(llm, word, mtp="off", **sampling)
            for k in (1, 4):
                out = ask(llm, word, mtp=k, **sampling)
                assert out.token_ids == plain.token_ids
                num_accepted += out.stats.num_accepted
    assert num_accepted > 20


def test_simulated_acceptance_equals_that_of_real_decoding(run: Run) -> None:
    """The exported head drafts the same as the head in training."""
    pipeline = Pipeline(run.recipe, run.options, QuietReport())
    vocabulary = pipeline._load_vocabulary(None)
    trainer = pipeline._make_trainer(vocabulary)
    trainer.head.scale_logits(json.loads((run.options.out / "run.json").read_text())["logit_scale"])
    with torch.no_grad():  # matrices are stored in float16
        for parameter in trainer.head.parameters():
            parameter.copy_(parameter.half() if parameter.ndim > 1 else parameter)
    prompts = read_prompts(run.options.prompt_files[0])
    samples = sample_bench(pipeline._rows, pipeline.tokenizer, prompts, run.recipe)
    llm = load(run)
    for word, sample in zip(WORDS, samples[0.0]["words"], strict=True):
        out = ask(llm, word, mtp=2)
        assert list(out.token_ids) == sample.ids[len(sample.job.prompt_ids) :].tolist()
        simulated = Simulator(pipeline.teacher, trainer.head, vocabulary, 2).run([sample])[2]
        # The engine may draft past the end of the answer in its last round; before, all is equal.
        assert abs(simulated.num_accepted - out.stats.num_accepted) <= 1
        assert abs(simulated.rounds - out.stats.rounds) <= 1


def test_tuned_layers_convert_to_gguf(run: Run, tmp_path: Path) -> None:
    request = MtpRequest(run.options.out, tmp_path / "mtp.gguf")
    assert convert_mtp_layers(request, LogProgress()).drops_vocabulary
    backbone = load_backbone(open_checkpoint(run.options.model), NumpyOps()).backbone
    heads = [load_head(path, backbone) for path in (run.options.out, tmp_path / "mtp.gguf")]
    ours, theirs = (one.draft_blocks() for one in heads if isinstance(one, LayerHead))
    for one, other in zip(ours.layer.linears, theirs.layer.linears, strict=True):
        assert one.weight.values.tobytes() == other.weight.values.tobytes()


def test_training_can_start_from_a_tuned_layer(run: Run, tmp_path: Path) -> None:
    second = replace(run.options, from_native=False, from_head=run.options.out, work=tmp_path)
    second = replace(second, bench_file=None)
    pipeline = Pipeline(run.recipe, second, QuietReport())
    pipeline.run(["generate"])
    vocabulary = pipeline._load_vocabulary(None)
    kept = read_head_weights(run.options.out).vocabulary
    assert kept is not None
    assert vocabulary.ids.tolist() == kept.tolist()
    trainer = pipeline._make_trainer(vocabulary)
    first = Pipeline(run.recipe, run.options, QuietReport())
    before = first._make_trainer(first._load_vocabulary(None)).head.state_dict()
    for name, values in trainer.head.state_dict().items():
        torch.testing.assert_close(values, before[name], atol=2e-3, rtol=2e-3)


def test_a_state_of_another_head_is_refused(run: Run) -> None:
    fresh = Pipeline(run.recipe, replace(run.options, from_native=False), QuietReport())
    nextn = replace(run.recipe, head=replace(run.recipe.head, kind="nextn"))
    fresh.recipe = nextn
    with pytest.raises(RequestError, match="is the state of another head"):
        fresh._make_trainer(fresh._load_vocabulary(None))
