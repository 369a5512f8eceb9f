"""A model's own MTP layer, tuned on the model's own answers: from the call to the text."""

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

WORDS = ("hello", "12", "hell", "good bye")


@dataclass(frozen=True)
class Run:
    """What a call left."""

    told: RunOptions
    recipe: Recipe
    said: str
    results: dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Recipe) -> Run:
    """A tiny Qwen3.5 whose MTP layer was tuned, and judged on what it learned from."""
    folder = tmp_path_factory.mktemp("native")
    model, prompts = write_talking_folder(folder / "model"), folder / "words.jsonl"
    records = [{"prompt": f"say {word}", "task": "words", "licence": "MIT"} for word in WORDS]
    prompts.write_text("\n".join(map(json.dumps, records)))
    told = RunOptions(model, folder / "work", folder / "out", (prompts,), device="cpu")
    told = replace(told, from_native=True)
    recipe = replace(tiny_recipe, training=replace(tiny_recipe.training, steps=40))
    Pipeline(recipe, told, QuietReport()).run(["generate", "train"])
    told, quiet = replace(told, bench_file=prompts), QuietReport()
    results = Pipeline(recipe, told, quiet).run(["evaluate"])
    return Run(told, recipe, "\n".join(quiet.lines), results)


def load(run: Run, backend: str = "numpy", quant: Any = "f16") -> LLM:
    """The model with its tuned layer."""
    head = str(run.told.out)
    return LLM.load(run.told.model, head=head, drafter="head", backend=backend, head_quant=quant)


def ask(llm: LLM, word: str, **options: Any) -> Any:
    """One answer."""
    said = [{"role": "user", "content": f"say {word}"}]
    return llm.generate(said, **{"temperature": 0, "max_tokens": 24, **options})


def test_acceptance_rises_and_both_are_told(run: Run) -> None:
    before, after = run.results["before"], run.results
    assert after["temperature_0"]["words"][2] > before["temperature_0"]["words"][2] + 0.5
    assert len(after["by_depth"]["temperature_0"]) == run.recipe.evaluation.max_depth
    shares = [sum(one["by_depth"]["temperature_0"]) for one in (before, after)]
    assert f"{1 + shares[0]:8.2f}" in run.said
    assert f"{1 + shares[1]:8.2f}" in run.said
    assert "accepted at depth, temperature 0" in run.said
    record = json.loads((run.told.out / "run.json").read_text())
    assert record["acceptance"] == run.results
    assert record["started_from"] == {"native": True}
    assert record["recipe"]["head"]["kind"] == "nextn"


def test_the_head_keeps_the_tokens_it_learned_to_draft(run: Run) -> None:
    llm = load(run)
    assert isinstance(llm.head, LayerHead)
    assert llm.head.vocabulary is not None
    assert len(llm.head.vocabulary) == run.recipe.head.draft_vocab_size
    with_all = LLM.load(run.told.model, head=str(run.told.out), draft_vocabulary="full")
    assert isinstance(with_all.head, LayerHead)
    assert with_all.head.vocabulary is None


def test_it_is_examined_as_it_drafts(run: Run) -> None:
    subject = load_subject(ExamOptions(model=str(run.told.model), head=run.told.out))
    assert subject.head is not None
    assert subject.head.vocabulary is not None
    assert len(subject.head.vocabulary) == run.recipe.head.draft_vocab_size


@pytest.mark.parametrize("backend", ["numpy", "native", "torch", "mlx"])
def test_the_text_is_the_same_with_and_without_it(run: Run, backend: str) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx.core")
    llm, num_accepted = load(run, backend, "auto"), 0
    for word in WORDS:
        for options in ({}, {"temperature": 0.8, "seed": 5}):
            plain = ask(llm, word, mtp="off", **options)
            for k in (1, 4):
                out = ask(llm, word, mtp=k, **options)
                assert out.token_ids == plain.token_ids
                num_accepted += out.stats.num_accepted
    assert num_accepted > 20


def test_simulated_acceptance_is_that_of_real_decoding(run: Run) -> None:
    """The engine drafts from the folder what the head in training drafts."""
    pipeline = Pipeline(run.recipe, run.told, QuietReport())
    vocabulary = pipeline._load_vocabulary(None)
    trainer = pipeline._make_trainer(vocabulary)
    trainer.head.scale_logits(json.loads((run.told.out / "run.json").read_text())["logit_scale"])
    with torch.no_grad():  # matrices are stored in float16
        for parameter in trainer.head.parameters():
            parameter.copy_(parameter.half() if parameter.ndim > 1 else parameter)
    prompts = read_prompts(run.told.prompt_files[0])
    sampler = pipeline._make_sampler(4, 120)
    samples = sample_bench(sampler, pipeline.tokenizer, prompts, run.recipe)
    llm = load(run)
    for word, sample in zip(WORDS, samples[0.0]["words"], strict=True):
        out = ask(llm, word, mtp=2)
        assert list(out.token_ids) == sample.ids[len(sample.job.prompt_ids) :].tolist()
        simulated = Simulator(pipeline.teacher, trainer.head, vocabulary, 2).run([sample])[2]
        # The engine may draft past the end of the answer in its last round; before, all is equal.
        assert abs(simulated.num_accepted - out.stats.num_accepted) <= 1
        assert abs(simulated.rounds - out.stats.rounds) <= 1


def test_tuned_layers_go_back_into_gguf(run: Run, tmp_path: Path) -> None:
    request = MtpRequest(run.told.out, tmp_path / "mtp.gguf")
    assert convert_mtp_layers(request, LogProgress()).drops_vocabulary
    backbone = load_backbone(open_checkpoint(run.told.model), NumpyOps()).backbone
    heads = [load_head(path, backbone) for path in (run.told.out, tmp_path / "mtp.gguf")]
    ours, theirs = (one.draft_blocks() for one in heads if isinstance(one, LayerHead))
    for one, other in zip(ours.layer.linears, theirs.layer.linears, strict=True):
        assert one.weight.values.tobytes() == other.weight.values.tobytes()


def test_training_goes_on_from_a_tuned_layer(run: Run, tmp_path: Path) -> None:
    onward = replace(run.told, from_native=False, from_head=run.told.out, work=tmp_path)
    onward = replace(onward, bench_file=None)
    pipeline = Pipeline(run.recipe, onward, QuietReport())
    pipeline.run(["generate"])
    vocabulary = pipeline._load_vocabulary(None)
    kept = read_head_weights(run.told.out).vocabulary
    assert kept is not None
    assert vocabulary.ids.tolist() == kept.tolist()
    trainer = pipeline._make_trainer(vocabulary)
    first = Pipeline(run.recipe, run.told, QuietReport())
    before = first._make_trainer(first._load_vocabulary(None)).head.state_dict()
    for name, values in trainer.head.state_dict().items():
        torch.testing.assert_close(values, before[name], atol=2e-3, rtol=2e-3)


def test_a_state_of_another_head_is_refused(run: Run) -> None:
    fresh = Pipeline(run.recipe, replace(run.told, from_native=False), QuietReport())
    nextn = replace(run.recipe, head=replace(run.recipe.head, kind="nextn"))
    fresh.recipe = nextn
    with pytest.raises(RequestError, match="is the state of another head"):
        fresh._make_trainer(fresh._load_vocabulary(None))
