"""Write a tiny random assistant for `tiny-gemma4-shared`, and what transformers drafts with it.

Out go `tiny-gemma4-assistant/` with config.json, model.safetensors and golden.json: for every
prefix of the input the ids of three drafted tokens, each from the one before, and how clear it was;
and the tokens that the backbone itself goes on with.
Nothing of Headlong is imported here. The tests read the folder and never run this script.
"""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from gemma4_configs import GEMMA4
from make_golden import dumps, made_with
from make_tiny_models import TOKEN_IDS, load, randomise
from tiny_configs import SIZES
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig

NUM_DEPTHS = 3
NUM_GREEDY = 32

TEXT: dict[str, Any] = {
    **{key: value for key, value in (SIZES | GEMMA4).items() if key != "architectures"},
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 2,
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "final_logit_softcapping": None,
}


def draft(model: Any, assistant: Any, end: int) -> list[dict[str, Any]]:
    """Draft behind the first `end` tokens and the one after them."""
    read = model(
        torch.tensor([TOKEN_IDS[:end]]),
        use_cache=False,
        output_hidden_states=True,
        return_shared_kv_states=True,
    )
    state, newest, chain = read.hidden_states[-1][:, -1:], TOKEN_IDS[end], []
    for _ in range(NUM_DEPTHS):
        embedded = model.get_input_embeddings()(torch.tensor([[newest]]))
        result = assistant(
            inputs_embeds=torch.cat([embedded, state], -1),
            attention_mask=None,
            position_ids=torch.tensor([[end]]),
            shared_kv_states=read.shared_kv_states,
        )
        best = result.logits[0, -1].topk(2)
        newest, state = int(best.indices[0]), result.last_hidden_state
        margin = float(best.values[0] - best.values[1])
        chain.append({"id": newest, "margin": float(f"{margin:.3g}")})
    return chain


def go_on(model: Any) -> list[int]:
    """Return the backbone's own greedy tokens behind the input, each from a whole new pass."""
    token_ids = list(TOKEN_IDS)
    for _ in range(NUM_GREEDY):
        token_ids.append(
            int(model(torch.tensor([token_ids]), use_cache=False).logits[0, -1].argmax())
        )
    return token_ids[len(TOKEN_IDS) :]


def main() -> None:
    """Write the folder beside the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="the folder that holds the tiny-<name> folders")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    source = arguments.output / "tiny-gemma4-shared"
    model = load(source, json.loads((source / "config.json").read_text()))
    text = Gemma4TextConfig(**copy.deepcopy(TEXT))
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=SIZES["hidden_size"])
    config._attn_implementation = "eager"
    assistant = Gemma4AssistantForCausalLM(config).float().eval()
    randomise(assistant, torch.float32)
    assistant.tie_weights()
    folder = arguments.output / "tiny-gemma4-assistant"
    assistant.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    (folder / "generation_config.json").unlink(missing_ok=True)
    # As published: what transformers 5 writes for single layers is left out.
    saved = json.loads((folder / "config.json").read_text())
    saved["text_config"].pop("per_layer_config", None)
    saved["text_config"]["global_head_dim"] = GEMMA4["global_head_dim"]
    (folder / "config.json").write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
    golden = {
        "made_with": made_with() | {"dtype": "float32", "attention": "eager"},
        "token_ids": TOKEN_IDS,
        "greedy": go_on(model),
        "drafts": [draft(model, assistant, end) for end in range(1, len(TOKEN_IDS))],
    }
    (folder / "golden.json").write_text(dumps(golden) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
