"""The tokenizer of a GGUF file as the files that Hugging Face folders have.

In:  the vocabulary of a GGUF file.
Out: tokenizer.json, tokenizer_config.json, chat templates and generation_config.json; or a refusal,
where what was written does not cut varied text into the very tokens that the file's own does.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Splitter
from tokenizers import decoders, processors

from headlong.errors import TextError
from headlong.text.folder_vocabulary import read_folder_vocabulary
from headlong.text.tokenizer import Tokenizer
from headlong.text.vocabulary import SENTENCEPIECE_SPACE, Vocabulary

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_PIECES_PER_TEXT = 64

VARIED_TEXTS = (
    "The quick brown fox jumps over the lazy dog. It's 3.14159, isn't it?",
    "def f(x: int) -> str:\n\treturn f'{x:>10}'  # 10%\n\n\n    if x != 0x1F:\r\n        pass",
    '{"a": [1, 22, 333, 4444, 55555], "b": null}\t\t<tag attr="v">&amp;</tag>',
    "   leading, trailing   and      runs of spaces \n \n\t \n",
    "Zürich, naïve café, e\u0301 (composed: é), ﬁ, Ǆ, İstanbul, ß",
    "日本語のテキスト、中文文本，한국어 텍스트, עברית, العربية, हिन्दी, ไทย",
    "👩\u200d👩\u200d👧\u200d👦 🇨🇭 😀\ufe0f \u00a0\u2003\u200b𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "<|im_start|>user\nHi<|im_end|><s></s><|endoftext|>[INST] <think>x</think>",
    "",
)
"""What both tokenizers must cut alike, besides the model's own pieces."""


def write_tokenizer(folder: Path, vocabulary: Vocabulary, config: dict[str, Any]) -> None:
    """Write the tokenizer of a model whose config.json holds `config`, and try it."""
    _splitter(vocabulary).save(str(folder / "tokenizer.json"))
    named = {name: text for name in _NAMED if (text := vocabulary.named_tokens.get(name))}
    settings = {
        **named,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(vocabulary.prefix_ids),
        "add_eos_token": bool(vocabulary.suffix_ids),
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
    }
    _write_json(folder / "tokenizer_config.json", settings)
    ends = {"eos_token_id": sorted(vocabulary.eos_ids), "bos_token_id": vocabulary.bos_id}
    _write_json(folder / "generation_config.json", ends)
    for name, text in vocabulary.templates.items():
        path = folder / "chat_template.jinja"
        if name != "default":
            path = folder / "additional_chat_templates" / f"{name}.jinja"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    check_tokenizer(Tokenizer(vocabulary), Tokenizer(read_folder_vocabulary(folder, config)))


def check_tokenizer(own: Tokenizer, written: Tokenizer) -> None:
    """Refuse a tokenizer that cuts text otherwise than the model's own."""
    pieces = range(min(own.vocab_size, written.vocab_size))
    decoded = (
        own.decode(pieces[first : first + _PIECES_PER_TEXT], skip_special=False)
        for first in range(0, len(pieces), _PIECES_PER_TEXT)
    )
    for text in (*VARIED_TEXTS, *decoded):
        for parses in (True, False):
            ours = own.encode(text, parse_special=parses)
            theirs = written.encode(text, parse_special=parses)
            if ours != theirs or own.decode(ours) != written.decode(ours):
                raise TextError(
                    f"The exported tokenizer reads {text[:40]!r} as {theirs[:8]}…, "
                    f"the model's own as {ours[:8]}….",
                    "Take the Hugging Face folder that the model was converted from.",
                )
    if own.eos_ids != written.eos_ids:
        raise TextError(
            f"The exported tokenizer ends turns with {sorted(written.eos_ids)}, the model's own "
            f"with {sorted(own.eos_ids)}.",
            "Take the Hugging Face folder that the model was converted from.",
        )


def _splitter(vocabulary: Vocabulary) -> Splitter:
    """Return a copy of the splitter that also decodes, and frames prompts as the model wants."""
    splitter = Splitter.from_str(vocabulary.splitter.to_str())
    if vocabulary.spelling == "byte-level":
        splitter.decoder = decoders.ByteLevel()
    else:
        strips = [decoders.Strip(" ", 1, 0)] if vocabulary.strips_first_space else []
        spaces = decoders.Replace(SENTENCEPIECE_SPACE, " ")
        parts = [spaces, decoders.ByteFallback(), decoders.Fuse(), *strips]
        splitter.decoder = decoders.Sequence(parts)
    frame = [*vocabulary.prefix_ids, *vocabulary.suffix_ids]
    if frame:
        before, after = (
            [vocabulary.pieces[i] for i in ids]
            for ids in (vocabulary.prefix_ids, vocabulary.suffix_ids)
        )
        splitter.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B", *after],
            special_tokens=[(vocabulary.pieces[i], i) for i in frame],
        )
    return splitter


def _write_json(path: Path, values: dict[str, Any]) -> None:
    known = {name: value for name, value in values.items() if value is not None}
    path.write_text(json.dumps(known, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
