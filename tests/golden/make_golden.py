"""Write the golden numbers of one GGUF model, computed by transformers.

In comes a model file; out goes a JSON file with what transformers makes of it: float32 weights
dequantised from the file, eager attention, one thread. Prompts are literal token ids, so reading
the numbers needs no tokenizer. Nothing of Headlong is imported here: agreement is worth something
only while the two sides share no code. The tests read the JSON and never run this script.
"""

import argparse
import copy
import hashlib
import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

PROSE = (
    "The history of the lighthouse begins long before electricity, when keepers carried oil up "
    "the stairs each night to keep the flame alive. Most of them"
)
CODE = (
    "def fibonacci(n: int) -> int:\n"
    '    """Return the n-th Fibonacci number."""\n'
    "    if n < 2:\n"
    "        return n\n"
    "    return"
)
TEXTS = {"prose": PROSE, "code": CODE}

# Gemma3 was trained with <bos> (id 2) in front and writes nonsense without it.
# fmt: off
PROMPTS: dict[str, dict[str, list[int]]] = {
    "llama": {
        "prose": [
            504, 1463, 282, 260, 33059, 5634, 986, 1092, 4866, 28, 645, 42805, 4891, 2664, 614,
            260, 24224, 971, 3163, 288, 1446, 260, 17520, 8441, 30, 3529, 282, 601,
        ],
        "code": [
            1604, 3987, 46477, 24, 94, 42, 464, 25, 4722, 464, 42, 472, 1620, 14362, 260, 304, 29,
            373, 24681, 46477, 1230, 7996, 472, 585, 304, 2067, 216, 34, 42, 448, 1003, 304, 472,
            1003,
        ],
    },
    "qwen2": {
        "prose": [
            785, 3840, 315, 279, 326, 57909, 12033, 1293, 1573, 17728, 11, 979, 2506, 388, 11691,
            5590, 705, 279, 31149, 1817, 3729, 311, 2506, 279, 34578, 13675, 13, 7496, 315, 1105,
        ],
        "code": [
            750, 75698, 1445, 25, 526, 8, 1464, 526, 510, 262, 4210, 5598, 279, 308, 7563, 79683,
            1372, 14442, 262, 421, 308, 366, 220, 17, 510, 286, 470, 308, 198, 262, 470,
        ],
    },
    "gemma3": {
        "prose": [
            2, 818, 4083, 529, 506, 63937, 12502, 1440, 1680, 14855, 236764, 1056, 129511, 7505,
            4446, 872, 506, 31393, 1546, 3446, 531, 2514, 506, 27400, 16944, 236761, 7660, 529,
            1091,
        ],
        "code": [
            2, 2063, 10779, 78113, 236769, 236749, 236787, 801, 236768, 3921, 801, 236787, 107,
            140, 12234, 13293, 506, 538, 236772, 594, 123466, 1548, 29738, 107, 140, 584, 538,
            655, 236743, 236778, 236787, 107, 144, 2060, 538, 107, 140, 2060,
        ],
    },
}
# fmt: on

NUM_TOP = 16
NUM_PROBES = 64
NUM_HIDDEN_VALUES = 16
NUM_GREEDY = 32

FloatRows = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Pass:
    """What one pass over a prompt leaves behind."""

    logits: FloatRows
    """(N, V)"""
    last_hidden: dict[str, FloatRows]
    """At the last position: the input of each tapped layer, and the rows around the final norm."""


def float32s(values: FloatRows) -> list[float]:
    """Return values as the shortest decimals that read back to the same float32."""
    return [float(str(value)) for value in values.astype(np.float32)]


def load_model(path: Path) -> Any:
    """Load a GGUF file into the transformers class of its architecture, as float32."""
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def tap_layers(model: Any) -> list[int]:
    """Return the layers whose inputs an EAGLE-3 head reads."""
    num_layers = int(model.config.num_hidden_layers)
    return [2, num_layers // 2, num_layers - 3]


@contextmanager
def recorded_inputs(modules: dict[str, Any]) -> Iterator[dict[str, FloatRows]]:
    """Keep the last row of what enters each module during a pass."""
    seen: dict[str, FloatRows] = {}

    def recorder(name: str) -> Any:
        def record(_module: Any, inputs: tuple[Any, ...]) -> None:
            seen[name] = inputs[0][0, -1].numpy(force=True).copy()

        return record

    hooks = [module.register_forward_pre_hook(recorder(name)) for name, module in modules.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def run_pass(model: Any, token_ids: Sequence[int]) -> Pass:
    """Run one pass over all ids."""
    modules = {f"input_of_layer_{i}": model.model.layers[i] for i in tap_layers(model)}
    modules |= {"raw": model.model.norm, "normed": model.lm_head}
    with torch.no_grad(), recorded_inputs(modules) as last_hidden:
        logits = model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    return Pass(logits.numpy(force=True), last_hidden)


def one_by_one(model: Any, token_ids: Sequence[int]) -> FloatRows:
    """Return the logits of passes of one token each over a growing cache."""
    rows = []
    cache = None
    with torch.no_grad():
        for token_id in token_ids:
            out = model(torch.tensor([[token_id]]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            rows.append(out.logits[0, -1].numpy(force=True))
    return np.stack(rows)


def greedy(model: Any, token_ids: Sequence[int]) -> dict[str, Any]:
    """Return the greedy continuation and the step where it was the closest call."""
    continuation: list[int] = []
    margins: list[float] = []
    cache = None
    step_ids = list(token_ids)
    with torch.no_grad():
        for _ in range(NUM_GREEDY):
            out = model(torch.tensor([step_ids]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            best = torch.topk(out.logits[0, -1], 2)
            continuation.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            step_ids = continuation[-1:]
    return {
        "token_ids": continuation,
        "min_margin": float(f"{min(margins):.6g}"),
        "min_margin_step": int(np.argmin(margins)),
    }


def row_record(row: FloatRows, probe_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Boil one row of logits down to what a test compares."""
    top_ids = np.argsort(-row, kind="stable")[:NUM_TOP]
    wide = row.astype(np.float64)
    log_sum_exp = wide.max() + np.log(np.exp(wide - wide.max()).sum())
    return {
        "top_ids": top_ids.tolist(),
        "top_logits": float32s(row[top_ids]),
        "mean": float(f"{wide.mean():.9g}"),
        "std": float(f"{wide.std():.9g}"),
        "log_sum_exp": float(f"{log_sum_exp:.9g}"),
        "probe_logits": float32s(row[probe_ids]),
    }


def hidden_record(name: str, row: FloatRows) -> dict[str, Any]:
    """Boil one hidden row down; only the final normed one is kept whole."""
    kept = row if name == "normed" else row[:NUM_HIDDEN_VALUES]
    norm = float(np.linalg.norm(row.astype(np.float64)))
    return {"norm": float(f"{norm:.9g}"), "values": float32s(kept)}


def measure_noise(model: Any, token_ids: Sequence[int], golden: FloatRows) -> dict[str, float]:
    """Return the largest logit difference of other, equally right, ways to do the same pass."""
    variants = {"one_token_per_pass": one_by_one(model, token_ids)}
    torch.set_num_threads(2)
    variants["two_threads"] = run_pass(model, token_ids).logits
    torch.set_num_threads(1)
    model.set_attn_implementation("sdpa")
    variants["sdpa_attention"] = run_pass(model, token_ids).logits
    model.set_attn_implementation("eager")
    # transformers keeps norms and rotary angles in float32 even here; the products are float64.
    variants["float64_products"] = run_pass(copy.deepcopy(model).double(), token_ids).logits
    return {
        name: float(f"{np.abs(logits - golden).max():.3g}") for name, logits in variants.items()
    }


def prompt_record(model: Any, tokenizer: Any, name: str, token_ids: list[int]) -> dict[str, Any]:
    """Return everything known about one prompt."""
    passed = run_pass(model, token_ids)
    probe_ids = choose_probe_ids(passed.logits.shape[1])
    continuation = greedy(model, token_ids)
    return {
        "name": name,
        "text": TEXTS[name],
        "token_ids": token_ids,
        "greedy": continuation | {"text": tokenizer.decode(continuation["token_ids"])},
        "noise": measure_noise(model, token_ids, passed.logits),
        "last_hidden": {key: hidden_record(key, row) for key, row in passed.last_hidden.items()},
        "rows": [row_record(row, probe_ids) for row in passed.logits],
    }


def choose_probe_ids(vocab_size: int) -> NDArray[np.int64]:
    """Return the ids whose logits are kept at every position, whatever their rank."""
    chosen = np.random.default_rng(0).choice(vocab_size, NUM_PROBES, replace=False)
    return np.sort(chosen).astype(np.int64)


def dumps(value: Any, indent: str = "") -> str:
    """Write JSON with one line for every list or object that holds only plain values."""
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(isinstance(x, dict | list) for x in items):
        return json.dumps(value, ensure_ascii=False)
    deeper = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {dumps(item, deeper)}" for key, item in value.items()]
        opening, closing = "{", "}"
    else:
        parts = [dumps(item, deeper) for item in value]
        opening, closing = "[", "]"
    body = f",\n{deeper}".join(parts)
    return f"{opening}\n{deeper}{body}\n{indent}{closing}"


def made_with() -> dict[str, str]:
    """Return the versions the numbers depend on."""
    packages = ("torch", "transformers", "gguf", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def make_golden(path: Path) -> dict[str, Any]:
    """Return the golden record of a model file."""
    architecture = str(GGUFReader(path).fields["general.architecture"].contents())
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    model = load_model(path)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    prompts = PROMPTS[architecture]
    return {
        "model": {"architecture": architecture, "sha256": sha256},
        "made_with": made_with() | {"dtype": "float32", "attention": "eager", "threads": 1},
        "tap_layers": tap_layers(model),
        "probe_ids": choose_probe_ids(int(model.config.vocab_size)).tolist(),
        "prompts": [prompt_record(model, tokenizer, name, ids) for name, ids in prompts.items()],
    }


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("output", type=Path, help="the JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.output.write_text(dumps(make_golden(arguments.model)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
