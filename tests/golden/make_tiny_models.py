"""Write tiny random checkpoints and the logits transformers computes from them.

Out go folders `tiny-<name>/` with model.safetensors, config.json in the form published checkpoints
have, config.v5.json in the form transformers 5 saves, and golden.json. Each covers what the real
files at hand do not: rotary scaling, q/k norms, biases, a sliding window that is really left.
Nothing of Headlong is imported here. The tests read the folders and never run this script.
"""

import argparse
import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from make_golden import dumps, made_with
from native_mtp import add_mtp_layer
from tiny_configs import CENTRED, TINY_MODELS, TinyModel
from tiny_latent_configs import LATENT_MODELS
from transformers import AutoConfig, AutoModelForCausalLM

TOKEN_IDS = [
    *[1, 17, 42, 42, 5, 63, 30, 8, 17, 42, 0, 59],
    *[22, 11, 36, 5, 63, 2, 48, 19, 7, 55, 33, 26],
]


def randomise(model: Any, stored: torch.dtype) -> None:
    """Give every weight a size at which it matters, rounded to the stored type."""
    generator = torch.Generator().manual_seed(0)
    biases = [(name, one) for name, one in model.named_buffers() if name.endswith("_bias")]
    for name, weight in sorted([*model.named_parameters(), *biases]):
        noise = torch.randn(weight.shape, generator=generator)
        if "norm" in name:
            is_centred = model.config.model_type in CENTRED
            centre = 0.0 if is_centred and "linear_attn" not in name else 1.0
            value = centre + 0.3 * noise
        elif name.endswith("A_log"):
            value = noise - 1  # memories that last from one row to ten
        elif name.endswith("bias"):
            value = 0.5 * noise
        elif "embed" in name:
            value = noise * weight.shape[1] ** -0.5
        else:
            # Louder than 1/sqrt(inputs), so that attention is far from uniform.
            value = 1.5 * noise * weight.shape[1] ** -0.5
        weight.data.copy_(value.to(stored))


def make_config(fields: dict[str, Any]) -> Any:
    """Return the transformers config of published fields."""
    # transformers writes into the dicts it is given.
    return AutoConfig.for_model(**copy.deepcopy(fields))


def load(folder: Path, config: dict[str, Any]) -> Any:
    """Load the weights of a folder with a config, as float32."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=make_config(config), dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def compute_logits(model: Any) -> torch.Tensor:
    """Return the (N, V) logits of the fixed input."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([TOKEN_IDS]), use_cache=False).logits[0]
    return logits


def write_tiny_model(folder: Path, tiny: TinyModel) -> None:
    """Write one folder and check that each trait of it can be seen in the logits."""
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(make_config(tiny.config), dtype=torch.float32)
    randomise(model, tiny.stored)
    model.to(tiny.stored).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    (folder / "generation_config.json").unlink()
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Left over from the published form; without it the layer types have to be read.
    saved.pop("sliding_window_pattern", None)
    (folder / "config.v5.json").write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
    dtype = str(tiny.stored).removeprefix("torch.")
    published = tiny.config | {"torch_dtype": dtype}
    (folder / "config.json").write_text(json.dumps(published, indent=2) + "\n", encoding="utf-8")

    logits = compute_logits(load(folder, published))
    if not torch.equal(logits, compute_logits(load(folder, saved))):
        raise ValueError(f"{folder.name}: the two forms of the config do not mean the same")
    effects = {
        name: float((compute_logits(load(folder, published | change)) - logits).abs().max())
        for name, change in tiny.traits.items()
    }
    weak = [name for name, effect in effects.items() if effect < 0.01]
    if weak:
        raise ValueError(f"{folder.name}: the logits do not depend on {weak}; change the sizes")
    drafts: list[dict[str, Any]] = []
    if tiny.mtp:
        loaded = load(folder, published)
        drafts = add_mtp_layer(
            folder, loaded, tiny.mtp, lambda mtp: randomise(mtp, tiny.stored), TOKEN_IDS
        )
    golden = {
        "made_with": made_with() | {"dtype": "float32", "attention": "eager"},
        "token_ids": TOKEN_IDS,
        "effects": {name: float(f"{effect:.3g}") for name, effect in effects.items()},
        "logits": [[float(f"{x:.6g}") for x in row] for row in logits.tolist()],
        "drafts": drafts,
    }
    (folder / "golden.json").write_text(dumps(golden) + "\n", encoding="utf-8")


def main() -> None:
    """Write all folders below the one named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="the folder that gets the tiny-<name> folders")
    parser.add_argument("names", nargs="*", help="of the models to write; all by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = TINY_MODELS | LATENT_MODELS
    for name, tiny in {name: known[name] for name in arguments.names or known}.items():
        write_tiny_model(arguments.output / f"tiny-{name}", tiny)


if __name__ == "__main__":
    main()
