"""Let llama.cpp's own converter write a tiny checkpoint as GGUF, beside it in its folder.

Needs `gguf`, `transformers` and llama.cpp's source; a head needs the folder of its model too. Only
Gemma's files get a vocabulary: as many meaningless tokens as the model has. Numbers keep the type
they are stored in. The tests read the file and never run this script.
"""

import argparse
import json
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_WRITTEN_AS = {"DeepseekV3ForCausalLM": "Glm4MoeLiteForCausalLM"}
"""The converter's class for DeepSeek-V3 drops the MTP layer; this one writes the same."""


def write_tokenizer(folder: Path) -> None:
    """Put a tokenizer of the right size beside the weights."""
    config = json.loads((folder / "config.json").read_text())
    parts = ("text_config", "transformer_layer_config")
    text = next((config[part] for part in parts if part in config), config)
    vocab_size = text["vocab_size"]
    vocab = {f"token{index}": index for index in range(vocab_size)}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def main() -> None:
    """Convert one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a tiny-<name> folder")
    parser.add_argument("source", type=Path, help="llama.cpp's source, with convert_hf_to_gguf.py")
    parser.add_argument("--target", type=Path, help="the folder of the model that a head is for")
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.source / "gguf-py"), str(arguments.source)]
    import conversion  # type: ignore[import-not-found]
    from conversion.base import TextModel  # type: ignore[import-not-found]

    find_class = conversion.get_model_class

    def find_written(name: str, mmproj: bool = False) -> Any:
        found = find_class(_WRITTEN_AS.get(name, name), mmproj=mmproj)
        is_gemma = name.startswith("Gemma4")
        found.set_vocab = TextModel._set_vocab_gpt2 if is_gemma else TextModel._set_vocab_none
        return found

    conversion.get_model_class = find_written
    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    with tempfile.TemporaryDirectory() as name:
        copied = Path(shutil.copytree(arguments.folder, Path(name) / "model"))
        write_tokenizer(copied)
        script = str(arguments.source / "convert_hf_to_gguf.py")
        out = str(arguments.folder / "converted.gguf")
        config = json.loads((arguments.folder / "config.json").read_text())
        kind = _TYPES[config.get("torch_dtype", "float32")]
        sys.argv = [script, str(copied), "--outtype", kind, "--outfile", out]
        if arguments.target is not None:
            sys.argv += ["--target-model-dir", str(arguments.target)]
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
