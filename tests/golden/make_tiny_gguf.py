"""Write the GGUF files of the tiny checkpoints that llama.cpp's own converter makes of them.

    LLAMA_CPP_SRC=…/llama.cpp python tests/golden/make_tiny_gguf.py tests/golden/tiny-…

Each folder named gets a model.gguf in float32, without a vocabulary. What the converter changes
(order of heads and rows, norms, decay rates, stacks of experts) is what the tests are for.
"""

import os
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

SOURCE = os.environ["LLAMA_CPP_SRC"]
sys.path[:0] = [f"{SOURCE}/gguf-py", SOURCE]

conversion: Any = import_module("conversion")
find_class = conversion.get_model_class


def without_vocabulary(name: str, mmproj: bool = False) -> Any:
    """Return the converter's class for an architecture, but for its vocabulary."""
    found: Any = find_class(name, mmproj=mmproj)
    found.set_vocab = found._set_vocab_none
    return found


conversion.get_model_class = without_vocabulary
script = f"{SOURCE}/convert_hf_to_gguf.py"
for folder in sys.argv[1:]:
    out = Path(folder) / "model.gguf"
    sys.argv = [script, folder, "--outtype", "f32", "--outfile", str(out)]
    runpy.run_path(script, run_name="__main__")
