"""Make an EAGLE-3 head with `speculators` itself: its own folder, and logits of two depths.

    PYTHON tests/golden/make_speculators_head.py tests/golden/tiny-llama3-rope OUT

Random weights; the residual is the normed state. Made with speculators 0.9.0, torch 2.13.0 and
transformers 5.22.2. The tests read the folder and never run this script.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import numpy as np
import torch
from safetensors.torch import load_file
from speculators import SpeculatorsConfig, VerifierConfig  # type: ignore[import-not-found]
from speculators.models.eagle3 import Eagle3SpeculatorConfig  # type: ignore[import-not-found]
from speculators.models.eagle3.core import Eagle3DraftModel  # type: ignore[import-not-found]
from speculators.proposals.greedy import GreedyTokenProposalConfig  # type: ignore[import-not-found]
from transformers import AutoConfig

NUM_ROWS, NUM_DRAFTED = 12, 40


def main(verifier: Path, out: Path) -> None:
    """Write the folder and golden.json."""
    torch.manual_seed(0)
    layer = AutoConfig.from_pretrained(verifier)
    num_layers, layer.num_hidden_layers = layer.num_hidden_layers, 1
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=NUM_DRAFTED,
        norm_before_residual=True,
        norm_output=False,
        norm_before_fc=True,
        eagle_aux_hidden_state_layer_ids=[num_layers - 3, num_layers - 2, num_layers - 1],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    head = Eagle3DraftModel(config).float().eval()
    with torch.no_grad():
        for name, values in head.named_parameters():
            if "norm" in name:
                values.copy_(1 + 0.2 * torch.randn_like(values))
            else:
                values.normal_(std=values.shape[-1] ** -0.5)
        embedding = load_file(verifier / "model.safetensors")["model.embed_tokens.weight"]
        head.embed_tokens.weight.copy_(embedding)
        chosen = torch.randperm(layer.vocab_size)[:NUM_DRAFTED].sort().values
        head.d2t.copy_(chosen - torch.arange(NUM_DRAFTED))
        head.t2d.copy_(torch.isin(torch.arange(layer.vocab_size), chosen))
    head.save_pretrained(out)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((NUM_ROWS, 3 * layer.hidden_size)).astype(np.float32)
    ids = rng.integers(0, layer.vocab_size, NUM_ROWS)
    logits: list[torch.Tensor] = []
    head.lm_head.register_forward_hook(lambda module, given, result: logits.append(result[0]))
    with torch.no_grad():
        documents = torch.zeros(1, NUM_ROWS, dtype=torch.long)
        head(torch.tensor(features)[None], torch.tensor(ids)[None], documents, ttt_steps=2)
    golden = {
        "features_seed": 0,
        "first": logits[0].tolist(),
        "second": logits[1][-1].tolist(),
        "vocabulary": chosen.tolist(),
    }
    (out / "golden.json").write_text(json.dumps(golden))


main(Path(sys.argv[1]), Path(sys.argv[2]))
