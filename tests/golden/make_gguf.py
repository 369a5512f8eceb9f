"""Convert a tiny checkpoint with llama.cpp's own converter: `tiny-<name>/model.gguf`.

It has no tokenizer, and the converter's class for DeepSeek-V3 drops the MTP layer, so two of its
answers are replaced here; tensors and metadata are all its own. Nothing of Headlong is imported.
"""

import argparse
import importlib
import runpy
import sys
from pathlib import Path
from typing import Any


def patch_converter() -> None:
    """Let it write files without a vocabulary, and DeepSeek-V3 with its MTP layer."""
    conversion: Any = importlib.import_module("conversion")
    deepseek: Any = importlib.import_module("conversion.deepseek")
    glm: Any = importlib.import_module("conversion.glm")
    for model_class in (deepseek.DeepseekV2Model, glm.Glm4MoeLiteModel):
        model_class.set_vocab = lambda self: self._set_vocab_none()
    find = conversion.get_model_class

    def find_with_mtp(name: str, mmproj: bool = False) -> Any:
        # The same architecture, written with the MTP layer.
        is_v3 = name == "DeepseekV3ForCausalLM"
        return glm.Glm4MoeLiteModel if is_v3 else find(name, mmproj=mmproj)

    conversion.get_model_class = find_with_mtp


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("llama_cpp", type=Path, help="llama.cpp's source folder")
    parser.add_argument("folder", type=Path, help="a tiny-<name> folder")
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.llama_cpp / "gguf-py"), str(arguments.llama_cpp)]
    patch_converter()
    script = str(arguments.llama_cpp / "convert_hf_to_gguf.py")
    target = arguments.folder / "model.gguf"
    sys.argv = [script, str(arguments.folder), "--outtype", "auto", "--outfile", str(target)]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
