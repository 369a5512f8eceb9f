"""Write the GGUF files of the tiny checkpoints that llama.cpp's own converter makes of them.

    LLAMA_CPP_SRC=…/llama.cpp python tests/golden/make_tiny_gguf.py tests/golden/tiny-…

Each folder named gets a model.gguf in the type it is stored in, without a vocabulary. What the
converter changes (order of heads and rows, norms, decay rates, stacks of experts, matrices turned)
is what the tests are for.
"""

import json
import os
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
SOURCE = os.environ["LLAMA_CPP_SRC"]
sys.path[:0] = [f"{SOURCE}/gguf-py", SOURCE]

conversion: Any = import_module("conversion")
find_class = conversion.get_model_class


def without_vocabulary(name: str, mmproj: bool = False) -> Any:
    """Return the converter's class for an architecture, but for its vocabulary."""
    # Its class for DeepSeek-V3 drops the MTP layer; this one writes the same architecture.
    kept = "Glm4MoeLiteForCausalLM" if name == "DeepseekV3ForCausalLM" else name
    found: Any = find_class(kept, mmproj=mmproj)
    found.set_vocab = found._set_vocab_none
    return found


conversion.get_model_class = without_vocabulary
script = f"{SOURCE}/convert_hf_to_gguf.py"
for folder in sys.argv[1:]:
    out = Path(folder) / "model.gguf"
    stored = json.loads((Path(folder) / "config.json").read_text())["torch_dtype"]
    sys.argv = [script, folder, "--outtype", TYPES[stored], "--outfile", str(out)]
    runpy.run_path(script, run_name="__main__")
