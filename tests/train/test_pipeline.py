"""End to end: from prompts to a head that drafts, on a tiny random model."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from headlong.errors import RequestError
from headlong.heads.fingerprint import fingerprint
from headlong.heads.head_files import read_head_weights
from headlong.llm import LLM
from headlong.train.draft_vocabulary import choose_vocabulary
from headlong.train.evaluation import Sample, Simulator, evaluate_head, sample_bench, shorten
from headlong.train.export import head_weights
from headlong.train.pipeline import Pipeline
from headlong.train.progress import Report
from headlong.train.prompt_files import read_prompts
from headlong.train.recipe import HeadShape, Recipe
from headlong.train.shards import read_shards
from headlong.train.teacher import Teacher
from headlong.train.torch_head import make_head
from headlong.weights.mlx_groups import PACKED
from train_parts import cpu_options

WORDS = ("hello", "12", "hell", "good bye")


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four prompts."""
    path = tmp_path_factory.mktemp("prompts") / "words.jsonl"
    records = [{"prompt": f"say {word}", "task": "words", "licence": "MIT"} for word in WORDS]
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def mean_length(results: dict[str, Any]) -> float:
    """Acceptance length over all bench prompts, K = 3, greedy."""
    return float(results["temperature_0"]["words"][2])


@pytest.mark.parametrize("changes", [{"packed": "q4"}, {"kind": "nextn"}, {"kind": "medusa"}])
def test_a_trained_head_drafts_better_than_an_untrained_one(
    tiny_gguf: Path,
    tiny_recipe: Recipe,
    prompt_file: Path,
    tmp_path: Path,
    quiet: Report,
    changes: dict[str, Any],
) -> None:
    recipe = replace(tiny_recipe, head=replace(tiny_recipe.head, **changes))
    call = cpu_options(tiny_gguf, tmp_path, prompt_file)
    Pipeline(recipe, call, quiet).run(["generate", "train"])
    # A model this small can only be evaluated on its training prompts.
    pipeline = Pipeline(recipe, replace(call, bench_file=prompt_file), quiet)
    results = pipeline.run(["evaluate"])

    answers = read_shards(tmp_path / "work" / "answers")
    vocabulary = choose_vocabulary(answers, 266, recipe.head.draft_vocab_size)
    raw = make_head(recipe.head, pipeline.teacher, vocabulary.ids, recipe.training.num_depths)
    samples = sample_bench(pipeline._rows, pipeline.tokenizer, read_prompts(prompt_file), recipe)
    untrained = evaluate_head(pipeline.teacher, raw, vocabulary, samples, recipe, quiet)
    assert mean_length(results) > mean_length(shorten(untrained)) + 0.2

    llm = LLM.load(tiny_gguf, head=tmp_path / "out", drafter="head", backend="numpy")
    said = [{"role": "user", "content": "say hello"}]
    out = llm.generate(said, mtp=3, temperature=0, max_tokens=24)
    assert out.stats.num_drafted > 0
    assert llm.head is not None
    assert llm.head.report.quant == ("q4" if recipe.head.packed == "q4" else "q8")
    stored = read_head_weights(tmp_path / "out").tensors.values()
    packed = [tensor for tensor in stored if tensor.type == PACKED]
    assert bool(packed) is (recipe.head.packed == "q4")
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["data"]["sets"]["words"]["licence"] == "MIT"
    assert record["recipe"]["head"]["kind"] == recipe.head.kind
    assert len(record["model"]["sha256"]) == 64
    assert record["backbone_fingerprint"] == fingerprint(llm.backbone)
    assert record["acceptance"] == results


@pytest.mark.parametrize("kind", ["eagle3", "nextn"])
def test_training_on_recorded_states_needs_no_forward_pass(
    tiny_gguf: Path,
    tiny_recipe: Recipe,
    prompt_file: Path,
    tmp_path: Path,
    quiet: Report,
    kind: HeadShape,
) -> None:
    """Training would only be slower without them."""
    recipe = replace(tiny_recipe, head=replace(tiny_recipe.head, kind=kind))
    pipeline = Pipeline(recipe, cpu_options(tiny_gguf, tmp_path, prompt_file), quiet)
    pipeline.run(["generate"])
    with patch.object(Teacher, "forward", side_effect=AssertionError) as forward:
        pipeline.run(["train"])
    assert not forward.called


def test_evaluation_prompts_are_left_out_and_counted(
    tiny_gguf: Path, tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path, quiet: Report
) -> None:
    bench = tmp_path / "bench.jsonl"
    bench.write_text(json.dumps({"prompt": "Say: 12!"}))
    call = replace(cpu_options(tiny_gguf, tmp_path, prompt_file), bench_file=bench)
    pipeline = Pipeline(tiny_recipe, call, quiet)
    assert [prompt.turns[0] for prompt in pipeline.prompts] == [
        "say hello",
        "say hell",
        "say good bye",
    ]
    pipeline.run(["generate"])
    Pipeline(tiny_recipe, call, quiet).run(["generate", "train"])
    data = json.loads((tmp_path / "out" / "run.json").read_text())["data"]
    bench_hash = hashlib.sha256(bench.read_bytes()).hexdigest()
    expected = {"prompts": 3, "held_out": {bench.name: bench_hash}, "left_out": {"words": 1}}
    assert data["asked"] == [expected]
    assert data["sets"]["words"]["answers"] > 0


def test_training_prompts_that_are_all_evaluation_prompts_are_refused(
    tiny_gguf: Path, tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path, quiet: Report
) -> None:
    call = replace(cpu_options(tiny_gguf, tmp_path, prompt_file), bench_file=prompt_file)
    with pytest.raises(RequestError, match="All 4 prompts share text with"):
        Pipeline(tiny_recipe, call, quiet).run(["generate"])


def test_simulated_acceptance_equals_that_of_real_decoding(
    tiny_gguf: Path, tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path, quiet: Report
) -> None:
    pipeline = Pipeline(tiny_recipe, cpu_options(tiny_gguf, tmp_path, prompt_file), quiet)
    pipeline.run(["generate", "train"])
    vocabulary = pipeline._load_vocabulary(None)
    trainer = pipeline._make_trainer(vocabulary)
    weights = head_weights(trainer.head, tiny_recipe.head, vocabulary.ids, "float16")
    with torch.no_grad():  # the engine reads float16, so the simulation must too
        for name, parameter in trainer.head.named_parameters():
            parameter.copy_(torch.from_numpy(weights.tensors[name].to_float32().copy()))
    prompts = read_prompts(prompt_file)
    samples = sample_bench(pipeline._rows, pipeline.tokenizer, prompts, tiny_recipe)
    llm = LLM.load(
        tiny_gguf, head=tmp_path / "out", drafter="head", backend="numpy", head_quant="f16"
    )
    for prompt, sample in zip(prompts, samples[0.0]["words"], strict=True):
        said = [{"role": "user", "content": prompt.turns[0]}]
        out = llm.generate(said, mtp=2, temperature=0, max_tokens=24)
        assert list(out.token_ids) == sample.ids[len(sample.job.prompt_ids) :].tolist()
        simulated = Simulator(pipeline.teacher, trainer.head, vocabulary, 2).run([sample])[2]
        # The engine may draft past the end of the answer in its last round; before, all is equal.
        assert abs(simulated.num_accepted - out.stats.num_accepted) <= 1
        assert abs(simulated.rounds - out.stats.rounds) <= 1


def test_generation_continues_where_it_stopped(
    tiny_gguf: Path, tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path, quiet: Report
) -> None:
    call = cpu_options(tiny_gguf, tmp_path, prompt_file)
    Pipeline(tiny_recipe, call, quiet).run(["generate"])
    first = read_shards(tmp_path / "work" / "answers")
    more = replace(tiny_recipe, answers=replace(tiny_recipe.answers, tokens_wanted=900))
    Pipeline(more, call, quiet).run(["generate"])
    both = read_shards(tmp_path / "work" / "answers")
    assert both.next_prompt > first.next_prompt > 0
    assert both.num_answer_tokens >= 900
    assert first.tokens(0).tolist() == both.tokens(0).tolist()


def test_training_can_start_from_a_head(
    tiny_gguf: Path, tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path, quiet: Report
) -> None:
    call = cpu_options(tiny_gguf, tmp_path / "first", prompt_file)
    Pipeline(tiny_recipe, call, quiet).run(["generate", "train"])
    second = cpu_options(tiny_gguf, tmp_path / "second", prompt_file)
    second = replace(second, from_head=tmp_path / "first" / "out")
    pipeline = Pipeline(tiny_recipe, second, quiet)
    pipeline.run(["generate"])
    trainer = pipeline._make_trainer(pipeline._load_vocabulary(None))
    first = Pipeline(tiny_recipe, call, quiet)
    before = first._make_trainer(first._load_vocabulary(None)).head.state_dict()
    for name, values in trainer.head.state_dict().items():
        torch.testing.assert_close(values, before[name], atol=2e-3, rtol=2e-3)


def test_a_head_with_other_draft_tokens_than_the_work_folder_is_refused(
    tiny_gguf: Path, tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path, quiet: Report
) -> None:
    """Its rows were once silently used for other tokens."""
    call = cpu_options(tiny_gguf, tmp_path / "first", prompt_file)
    Pipeline(tiny_recipe, call, quiet).run(["generate", "train"])
    second = cpu_options(tiny_gguf, tmp_path / "second", prompt_file)
    smaller = replace(tiny_recipe, head=replace(tiny_recipe.head, draft_vocab_size=64))
    Pipeline(smaller, second, quiet).run(["generate"])
    Pipeline(smaller, second, quiet)._load_vocabulary(None)
    tuning = Pipeline(smaller, replace(second, from_head=call.out), quiet)
    with pytest.raises(RequestError, match="drafts tokens that are not in"):
        tuning.run(["train"])


def test_drafts_of_a_sample_without_answer_are_not_counted(
    tiny_gguf: Path, tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path, quiet: Report
) -> None:
    pipeline = Pipeline(tiny_recipe, cpu_options(tiny_gguf, tmp_path, prompt_file), quiet)
    pipeline.run(["generate"])
    vocabulary = pipeline._load_vocabulary(None)
    prompts = read_prompts(prompt_file)
    sample = sample_bench(pipeline._rows, pipeline.tokenizer, prompts, tiny_recipe)[0.0]["words"][0]
    cut = Sample(sample.job, sample.ids[: len(sample.job.prompt_ids) + 1])
    head = make_head(tiny_recipe.head, pipeline.teacher, vocabulary.ids, 3)
    assert Simulator(pipeline.teacher, head, vocabulary, 2).run([cut])[2].rounds == 0


def test_training_needs_neither_the_model_store_nor_a_terminal() -> None:
    """Machines for training may have only numpy, torch, gguf and the tokenizers."""
    script = "import sys, headlong.cli.train, headlong.train.pipeline; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    spared = {"filelock", "platformdirs", "rich", "httpx", "fastapi", "huggingface_hub"}
    assert not spared & set(done.stdout.split())
