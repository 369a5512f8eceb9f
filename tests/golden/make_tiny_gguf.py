"""Let llama.cpp's own converter write a tiny checkpoint as GGUF, beside it in its folder.

Needs `gguf`, `transformers` and llama.cpp's source. Only Gemma's files get a vocabulary: as
many meaningless tokens as the model has. The tests read the file and never run this script.
"""

import argparse
import json
import runpy
import shutil
import sys
import tempfile
from pathlib import Path


def write_tokenizer(folder: Path) -> None:
    """Put a tokenizer of the right size beside the weights."""
    config = json.loads((folder / "config.json").read_text())
    vocab_size = config.get("text_config", config)["vocab_size"]
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
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.source / "gguf-py"), str(arguments.source)]
    from conversion import gemma, glm  # type: ignore[import-not-found]
    from conversion.base import TextModel  # type: ignore[import-not-found]

    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    TextModel.set_vocab = glm.Glm4MoeModel.set_vocab = TextModel._set_vocab_none
    gemma.Gemma4Model.set_vocab = TextModel._set_vocab_gpt2
    with tempfile.TemporaryDirectory() as name:
        copied = Path(shutil.copytree(arguments.folder, Path(name) / "model"))
        write_tokenizer(copied)
        script = str(arguments.source / "convert_hf_to_gguf.py")
        out = str(arguments.folder / "converted.gguf")
        sys.argv = [script, str(copied), "--outtype", "f32", "--outfile", out]
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
