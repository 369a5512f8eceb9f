"""Convert tiny checkpoints with mlx-lm itself and write what mlx-lm computes from them.

Out go folders `mlx-<name>/` with what `mlx_lm.convert` writes (model.safetensors, config.json), and
golden.json: logits and greedy tokens, computed in float32 with the weights of the file.
Nothing of Headlong is imported here. The tests read the folders and never run this script.
"""

import argparse
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
from make_tiny_models import TOKEN_IDS
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

GROUP_SIZE, NUM_NEW = 32, 24
LAYER = re.compile(r"model\.layers\.(\d+)\.")
EXPERT = re.compile(r"(.+\.experts\.)(\d+)\.(\w+)_proj\.weight")

FOLDERS = {
    "llama3-rope": (8, mx.float16, ()),
    "deepseek_v3": (4, mx.bfloat16, ("q_a_proj", "gate_proj")),
    "qwen3_5_moe": (4, mx.bfloat16, ()),
}
"""Bits, the type of all else, and parts of names that get 6 bits instead."""


def published(source: Path) -> tuple[dict[str, Any], dict[str, mx.array]]:
    """Return config and weights as mlx-lm expects them of a publisher."""
    config = json.loads((source / "config.json").read_text())
    num_layers = config["num_hidden_layers"]
    weights = {
        name: values
        for name, values in mx.load(str(source / "model.safetensors")).items()
        if (found := LAYER.match(name)) is None or int(found[1]) < num_layers
    }
    if config["model_type"] == "qwen3_5_moe_text":  # whose publisher stacks experts
        config = {"model_type": "qwen3_5_moe", "text_config": config}
        for stem in {found[1] for name in weights if (found := EXPERT.match(name))}:
            numbers = range(config["text_config"]["num_experts"])
            parts = {
                part: mx.stack([weights.pop(f"{stem}{i}.{part}_proj.weight") for i in numbers])
                for part in ("gate", "up", "down")
            }
            weights[f"{stem}gate_up_proj"] = mx.concatenate([parts["gate"], parts["up"]], axis=1)
            weights[f"{stem}down_proj"] = parts["down"]
    return config, weights


def convert(source: Path, folder: Path, name: str) -> None:
    """Write one folder."""
    bits, dtype, finer = FOLDERS[name]

    def choose(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % GROUP_SIZE:
            return False
        is_finer = any(part in path for part in finer)
        return {"group_size": GROUP_SIZE, "bits": 6} if is_finer else True

    with tempfile.TemporaryDirectory() as place:
        config, weights = published(source)
        (Path(place) / "config.json").write_text(json.dumps(config))
        mx.save_safetensors(str(Path(place) / "model.safetensors"), weights, {"format": "pt"})
        model, config = load_model(Path(place))
        model.set_dtype(dtype)
        model, config = quantize_model(model, config, GROUP_SIZE, bits, quant_predicate=choose)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_model(folder, model)
        save_config(config, folder / "config.json")
    (folder / "README.md").unlink(missing_ok=True)


def describe(folder: Path) -> dict[str, Any]:
    """Return what mlx-lm computes from a folder."""
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    logits = model(mx.array([TOKEN_IDS]))[0].tolist()
    ids = list(TOKEN_IDS)
    for _ in range(NUM_NEW):
        ids.append(int(mx.argmax(model(mx.array([ids]))[0, -1])))
    return {
        "token_ids": TOKEN_IDS,
        "logits": [[round(value, 6) for value in row] for row in logits],
        "greedy": ids[len(TOKEN_IDS) :],
    }


def main() -> None:
    """Write all folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the tiny-* folders are")
    golden = parser.parse_args().folder
    for name in FOLDERS:
        folder = golden / f"mlx-{name}"
        convert(golden / f"tiny-{name}", folder, name)
        (folder / "golden.json").write_text(json.dumps(describe(folder)))


if __name__ == "__main__":
    main()
