"""The tokenizer of a Hugging Face folder as GGUF metadata.

In:  a checkpoint from a folder, whose tokenizer is byte-level BPE.
Out: the `tokenizer.*` key/values; or a refusal, where no rule that GGUF has a name for cuts varied
text as the folder's tokenizer does.
"""

import json
from typing import Any

from gguf import TokenType
from tokenizers import Tokenizer as Splitter

from headlong.errors import TextError
from headlong.export.tokenizer_files import VARIED_TEXTS, check_tokenizer
from headlong.text.folder_vocabulary import read_folder_vocabulary
from headlong.text.gguf_vocabulary import read_gguf_vocabulary
from headlong.text.pre_tokenizer import PRE_TOKENIZERS
from headlong.text.tokenizer import Tokenizer
from headlong.text.vocabulary import Vocabulary
from headlong.weights.checkpoint import Checkpoint

_REMEDY = "Convert the model with llama.cpp's convert_hf_to_gguf.py, and name that file."
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def describe_tokens(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a folder's tokens as metadata, tried against the folder's own tokenizer."""
    vocabulary = read_folder_vocabulary(checkpoint.path, checkpoint.metadata)
    if vocabulary.spelling != "byte-level":
        raise TextError(
            f"{checkpoint.path} has a {vocabulary.spelling} tokenizer; only byte-level ones are "
            "written as GGUF here.",
            _REMEDY,
        )
    keys = {
        "model": "gpt2",
        "pre": _find_rule(vocabulary.splitter, str(checkpoint.path)),
        **_list_tokens(vocabulary),
        "merges": _merges(vocabulary.splitter),
        "add_bos_token": bool(vocabulary.prefix_ids),
        "add_eos_token": bool(vocabulary.suffix_ids),
        **_roles(vocabulary),
    }
    metadata: dict[str, Any] = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    for name, text in vocabulary.templates.items():
        suffix = "" if name == "default" else f".{name}"
        metadata[f"tokenizer.chat_template{suffix}"] = text
    check_tokenizer(Tokenizer(vocabulary), Tokenizer(read_gguf_vocabulary(metadata)))
    return metadata


def _find_rule(splitter: Splitter, source: str) -> str:
    """Return the name of the rule that cuts text before merging as this tokenizer does."""

    def cuts(tokenizer: Any) -> list[list[str]]:
        return [[piece for piece, _ in tokenizer.pre_tokenize_str(text)] for text in VARIED_TEXTS]

    own = None if splitter.pre_tokenizer is None else cuts(splitter.pre_tokenizer)
    state = json.loads(splitter.to_str())
    composes = "NFC" in json.dumps(state["normalizer"])
    ignores = bool(state["model"].get("ignore_merges"))
    for name, rule in PRE_TOKENIZERS.items():
        same_habits = (rule.composes, rule.ignores_merges) == (composes, ignores)
        if same_habits and cuts(rule.make_pre_tokenizer()) == own:
            return name
    raise TextError(f"{source} cuts text in a way that GGUF files have no name for.", _REMEDY)


def _list_tokens(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return pieces and kinds of all ids; an id without text gets a name that is never written."""
    added = vocabulary.splitter.get_added_tokens_decoder()
    pieces, kinds = [], []
    for token_id, piece in enumerate(vocabulary.pieces):
        kind = TokenType.NORMAL
        if token_id in added:
            is_control = token_id in vocabulary.special_ids
            kind = TokenType.CONTROL if is_control else TokenType.USER_DEFINED
        pieces.append(piece or f"[PAD{token_id}]")
        kinds.append(int(kind if piece else TokenType.UNUSED))
    return {"tokens": pieces, "token_type": kinds}


def _merges(splitter: Splitter) -> list[str]:
    merges = json.loads(splitter.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _roles(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of tokens that have a role; a second end of turn is the "eot" token."""
    named = vocabulary.named_tokens
    ids = {
        f"{role}_token_id": token_id
        for short, role in _ROLES.items()
        if (token_id := vocabulary.splitter.token_to_id(named.get(f"{short}_token", "")))
        is not None
    }
    ends = sorted(vocabulary.eos_ids - {ids.get("eos_token_id")})
    for key in ("eos_token_id", "eot_token_id"):
        if ends and key not in ids:
            ids[key] = ends.pop(0)
    return ids
