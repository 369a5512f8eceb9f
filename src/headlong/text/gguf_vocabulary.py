"""Vocabularies out of GGUF metadata, rebuilt for the `tokenizers` library.

In:  the `tokenizer.*` key/values of a GGUF file as plain Python values.
Out: a `Vocabulary`. Three kinds of files are known: "gpt2" (byte-level BPE with stored merges),
"llama" (SentencePiece BPE, whose merges follow from the scores) and "gemma4" (SentencePiece BPE
with stored merges).
Opens no files; what is missing, inconsistent or unknown is refused with its value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gguf import TokenType
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Splitter
from tokenizers.models import BPE

from headlong.errors import TextError
from headlong.text.pre_tokenizer import PreTokenizer, find_pre_tokenizer
from headlong.text.vocabulary import (
    SENTENCEPIECE_SPACE,
    Pieces,
    Vocabulary,
    find_eos_ids,
    make_plain_splitter,
)

Value = TypeVar("Value", str, int, float)

_REMEDY = "Use another copy of the model, or its Hugging Face folder."
_MAX_PIECE = 1024
_MODELS = ("gpt2", "llama", "gemma4")
_DEFAULT_TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The token list of a file with what it says of each token."""

    pieces: Sequence[str]
    kinds: Sequence[int]

    def ids_of(self, *kinds: TokenType) -> list[int]:
        """Return the ids of all tokens of these kinds."""
        return [i for i, kind in enumerate(self.kinds) if kind in kinds]


def read_gguf_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Build the vocabulary that GGUF metadata describes."""
    model = metadata.get("tokenizer.ggml.model")
    if model not in _MODELS:
        raise TextError(
            f"The GGUF file's tokenizer.ggml.model is {model!r}; known are {', '.join(_MODELS)}.",
            "Use the model's Hugging Face folder with its tokenizer.json.",
        )
    tokens = _read_tokens(metadata)
    ids = _read_token_ids(metadata, len(tokens.pieces))
    has_space_prefix = False
    if model == "gpt2":
        rule = find_pre_tokenizer(metadata.get("tokenizer.ggml.pre"))
        splitter = _byte_level_splitter(metadata, tokens, rule)
        adds_bos = rule.adds_bos
    else:
        has_space_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", model == "llama"))
        merges = _merges_from_scores(metadata, tokens) if model == "llama" else _merges(metadata)
        splitter = _sentencepiece_splitter(tokens, merges, ids, has_space_prefix)
        adds_bos = True
    _add_tokens(splitter, tokens)

    special_ids = frozenset(tokens.ids_of(TokenType.CONTROL, TokenType.UNKNOWN))
    if model != "gemma4":  # early files of it say no, which is wrong
        adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos))
    adds_bos = adds_bos and "bos" in ids
    adds_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and "eos" in ids
    unused = set(tokens.ids_of(TokenType.UNUSED))
    ending = {ids[name] for name in ("eos", "eot", "eom") if name in ids}
    if model == "gemma4":  # what comes behind a tool call is not the model's to write
        ending |= {i for i, piece in enumerate(tokens.pieces) if piece == "<|tool_response>"}
    return Vocabulary(
        splitter=splitter,
        plain_splitter=make_plain_splitter(splitter),
        pieces=Pieces("" if i in unused else piece for i, piece in enumerate(tokens.pieces)),
        spelling="byte-level" if model == "gpt2" else "sentencepiece",
        literal_ids=frozenset(
            tokens.ids_of(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        ),
        special_ids=special_ids,
        prefix_ids=(ids["bos"],) if adds_bos else (),
        suffix_ids=(ids["eos"],) if adds_eos else (),
        eos_ids=find_eos_ids(tokens.pieces, special_ids) | ending,
        bos_id=ids.get("bos"),
        strips_first_space=has_space_prefix,
        templates=_read_templates(metadata),
        named_tokens={f"{name}_token": tokens.pieces[i] for name, i in ids.items()},
    )


def _byte_level_splitter(
    metadata: Mapping[str, Any], tokens: _Tokens, rule: PreTokenizer
) -> Splitter:
    splitter = _make_bpe(tokens, _merges(metadata), ignore_merges=rule.ignores_merges)
    if rule.composes:
        splitter.normalizer = normalizers.NFC()
    splitter.pre_tokenizer = rule.make_pre_tokenizer()
    return splitter


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [_parse_merge(merge) for merge in _read_list(metadata, "merges", str)]


def _sentencepiece_splitter(
    tokens: _Tokens, merges: list[tuple[str, str]], ids: Mapping[str, int], has_space_prefix: bool
) -> Splitter:
    unknown_ids = tokens.ids_of(TokenType.UNKNOWN)
    # Some files mark <unk> as a control token and name it by id only.
    stated = ids.get("unk", unknown_ids[0] if unknown_ids else 0)
    unknown = tokens.pieces[stated]
    splitter = _make_bpe(tokens, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown)
    marks: list[normalizers.Normalizer] = [normalizers.Replace(" ", SENTENCEPIECE_SPACE)]
    if has_space_prefix:
        marks.insert(0, normalizers.Prepend(SENTENCEPIECE_SPACE))
    splitter.normalizer = normalizers.Sequence(marks)
    return splitter


def _merges_from_scores(metadata: Mapping[str, Any], tokens: _Tokens) -> list[tuple[str, str]]:
    """Return every way to join two tokens into a third, best-scored result first.

    SentencePiece joins the neighbours whose result scores best. The library wants a ranked list of
    pairs instead, so each token is listed once for every cut that gives two tokens.
    """
    scores = _read_list(metadata, "scores", float)
    if len(scores) != len(tokens.pieces):
        problem = f"The GGUF file has {len(tokens.pieces)} tokens but {len(scores)} scores."
        raise TextError(problem, _REMEDY)
    ordinary = {tokens.pieces[i]: -scores[i] for i in tokens.ids_of(TokenType.NORMAL)}
    too_long = next((piece for piece in ordinary if len(piece) > _MAX_PIECE), None)
    if too_long is not None:
        problem = f"The GGUF file has a token of {len(too_long)} letters ({too_long[:20]!r}…)."
        raise TextError(f"{problem} At most {_MAX_PIECE} are expected.", _REMEDY)
    return [
        (whole[:cut], whole[cut:])
        for whole in sorted(ordinary, key=ordinary.__getitem__)
        for cut in range(len(whole) - 1, 0, -1)
        if whole[:cut] in ordinary and whole[cut:] in ordinary
    ]


def _make_bpe(tokens: _Tokens, merges: list[tuple[str, str]], **options: Any) -> Splitter:
    vocabulary: dict[str, int] = {}
    for token_id, piece in enumerate(tokens.pieces):
        if not piece:
            continue
        if piece in vocabulary:
            problem = f"The GGUF file has {piece!r} twice, as tokens {vocabulary[piece]} and"
            raise TextError(f"{problem} {token_id}.", _REMEDY)
        vocabulary[piece] = token_id
    try:
        return Splitter(BPE(vocabulary, merges, **options))
    except Exception as error:  # the library raises nothing narrower
        problem = f"The GGUF file's tokens and merges do not fit together: {error}."
        raise TextError(problem, _REMEDY) from error


def _add_tokens(splitter: Splitter, tokens: _Tokens) -> None:
    """Make control and user-defined tokens whole: they are found in text before anything else."""
    added = [
        AddedToken(piece, normalized=False, special=kind != TokenType.USER_DEFINED)
        for piece, kind in zip(tokens.pieces, tokens.kinds, strict=True)
        if piece and kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    ]
    splitter.add_tokens(added)


def _read_tokens(metadata: Mapping[str, Any]) -> _Tokens:
    pieces = _read_list(metadata, "tokens", str)
    kinds = _read_list(metadata, "token_type", int)
    if len(pieces) != len(kinds):
        problem = f"The GGUF file has {len(pieces)} tokens but {len(kinds)} token types."
        raise TextError(problem, _REMEDY)
    return _Tokens(pieces, kinds)


def _read_list(metadata: Mapping[str, Any], name: str, kind: type[Value]) -> list[Value]:
    """Return a list of the metadata whose items all have one type; refuse anything else."""
    key = f"tokenizer.ggml.{name}"
    values = metadata.get(key)
    if not isinstance(values, (list, tuple)) or not values:
        raise TextError(f"The GGUF file has no {key}.", _REMEDY)
    wrong = next((value for value in values if not isinstance(value, kind)), None)
    if wrong is not None:
        problem = f"The GGUF file's {key} holds {wrong!r}, which is not of type {kind.__name__}."
        raise TextError(problem, _REMEDY)
    return list(values)


def _parse_merge(merge: str) -> tuple[str, str]:
    # The separator is the first space after the first letter: the left part may itself be a space.
    cut = merge.find(" ", 1)
    if cut < 0:
        raise TextError(f"The GGUF file's merge {merge!r} does not name two tokens.", _REMEDY)
    return merge[:cut], merge[cut + 1 :]


def _read_token_ids(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, int]:
    """Return the ids of the tokens that have a role, by the role's short name."""
    roles = {"bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom"}
    roles |= {"unk": "unknown", "pad": "padding"}
    found: dict[str, int] = {}
    for role, name in roles.items():
        key = f"tokenizer.ggml.{name}_token_id"
        token_id = metadata.get(key)
        if token_id is None:
            continue
        if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            problem = f"The GGUF file's {key} is {token_id!r}, but there are {vocab_size} tokens."
            raise TextError(problem, _REMEDY)
        found[role] = token_id
    return found


def _read_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name: the plain key is the default, others carry a suffix."""
    prefix = f"{_DEFAULT_TEMPLATE}."
    named = {key[len(prefix) :]: metadata[key] for key in metadata if key.startswith(prefix)}
    if _DEFAULT_TEMPLATE in metadata:
        named["default"] = metadata[_DEFAULT_TEMPLATE]
    return {name: text for name, text in named.items() if isinstance(text, str)}
