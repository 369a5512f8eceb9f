"""Vocabularies out of a Hugging Face folder.

In:  tokenizer.json and the small files beside it, and the model's config.
Out: a `Vocabulary`, cut and merged by tokenizer.json itself.
What those files leave open (does a prompt begin with BOS, which tokens end a turn) is asked of the
tokenizer or gathered from every file that may say it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Splitter

from headlong.errors import TextError
from headlong.text.vocabulary import Pieces, Spelling, Vocabulary, find_eos_ids, make_plain_splitter
from headlong.weights.mapped_file import read_json_object

MAX_SETTINGS_BYTES = 2**24
MAX_TOKENS = 2**24

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def read_folder_vocabulary(folder: Path, config: Mapping[str, Any]) -> Vocabulary:
    """Build the vocabulary of the model in `folder`, whose config.json holds `config`."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TextError(
            f"{folder} has no tokenizer.json.",
            "Download it with the model; a tokenizer.model alone is not enough.",
        )
    splitter = _load_splitter(path)
    settings = _read_settings(folder, "tokenizer_config.json")
    named = _named_tokens(settings, _read_settings(folder, "special_tokens_map.json"))

    added = splitter.get_added_tokens_decoder()
    special_ids = frozenset(i for i, token in added.items() if token.special)
    pieces = _list_pieces(splitter, config)
    bos_id = splitter.token_to_id(named["bos_token"]) if "bos_token" in named else None
    eos_id = splitter.token_to_id(named["eos_token"]) if "eos_token" in named else None
    prefix_ids, suffix_ids = _probe_frame(splitter)
    prefix_ids = _obey(settings.get("add_bos_token"), bos_id, prefix_ids)
    suffix_ids = _obey(settings.get("add_eos_token"), eos_id, suffix_ids)
    stated = {*_stated_eos_ids(_read_settings(folder, "generation_config.json"), config)}
    # A config that was copied from a larger model may name ends this one can never write.
    stated = {i for i in stated if 0 <= i < len(pieces)}
    stated |= {eos_id} if eos_id is not None else set()
    spelling, strips_first_space = _find_spelling(splitter, path)
    return Vocabulary(
        splitter=splitter,
        plain_splitter=make_plain_splitter(splitter),
        pieces=Pieces(pieces),
        spelling=spelling,
        literal_ids=frozenset(added),
        special_ids=special_ids,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        eos_ids=find_eos_ids(pieces, special_ids) | stated,
        bos_id=bos_id,
        strips_first_space=strips_first_space,
        templates=_read_templates(folder, settings),
        named_tokens=named,
    )


def _load_splitter(path: Path) -> Splitter:
    try:
        splitter = Splitter.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise TextError(
            f"{path} is not a tokenizer we can read: {error}.", "Download the file again."
        ) from error
    # Files saved after training may still carry the cutting and padding used there.
    splitter.no_truncation()
    splitter.no_padding()
    return splitter


def _list_pieces(splitter: Splitter, config: Mapping[str, Any]) -> list[str]:
    """Return the pieces by id; the model may have more rows than the tokenizer has tokens."""
    ids = splitter.get_vocab(with_added_tokens=True)
    if not ids:
        raise TextError("tokenizer.json has no tokens at all.", "Download the file again.")
    stated = config.get("vocab_size")
    num_rows = max(max(ids.values()) + 1, stated if isinstance(stated, int) else 0)
    if num_rows > MAX_TOKENS:
        problem = f"The vocabulary would have {num_rows} tokens; at most {MAX_TOKENS} are expected."
        raise TextError(problem, "Download config.json and tokenizer.json again.")
    pieces = [""] * num_rows
    for piece, token_id in ids.items():
        pieces[token_id] = piece
    return pieces


def _probe_frame(splitter: Splitter) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the tokenizer puts before and after every text."""
    bare = splitter.encode("a", add_special_tokens=False).ids
    framed = splitter.encode("a", add_special_tokens=True).ids
    for start in range(len(framed) - len(bare) + 1):
        if framed[start : start + len(bare)] == bare:
            return tuple(framed[:start]), tuple(framed[start + len(bare) :])
    problem = "tokenizer.json changes the tokens of a text when it adds its special ones."
    raise TextError(problem, "This kind of tokenizer is not known here; use a GGUF of the model.")


def _obey(adds: object, token_id: int | None, frame: tuple[int, ...]) -> tuple[int, ...]:
    """Return `frame` with or without the token, as tokenizer_config.json says, if it does."""
    # An explicit word there outweighs tokenizer.json: DeepSeek's files ask for BOS only there.
    if token_id is None or not isinstance(adds, bool) or adds == (token_id in frame):
        return frame
    return (token_id, *frame) if adds else tuple(i for i in frame if i != token_id)


def _stated_eos_ids(*sources: Mapping[str, Any]) -> Iterator[int]:
    for source in sources:
        stated = source.get("eos_token_id")
        ids = stated if isinstance(stated, list) else [stated]
        yield from (i for i in ids if isinstance(i, int))


def _find_spelling(splitter: Splitter, path: Path) -> tuple[Spelling, bool]:
    """Return how pieces spell bytes, and whether decoding drops a first space."""
    decoder = splitter.decoder
    parts = [] if decoder is None else list(_flatten(json.loads(decoder.__getstate__())))
    kinds = [part.get("type") for part in parts]
    if "ByteLevel" in kinds:
        return "byte-level", False
    if "Metaspace" in kinds:
        scheme = parts[kinds.index("Metaspace")].get("prepend_scheme", "always")
        return "sentencepiece", scheme != "never"
    if "ByteFallback" in kinds:
        return "sentencepiece", "Strip" in kinds
    raise TextError(
        f"{path} turns tokens into text by {kinds}, which is not a way we know.",
        "Byte-level and SentencePiece tokenizers work; use a GGUF of the model if there is one.",
    )


def _flatten(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Walk a decoder that may be a Sequence of others."""
    yield decoder
    for part in decoder.get("decoders", ()):
        yield from _flatten(part)


def _named_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens that have a role; each is stored as its text or as a record with it."""
    named: dict[str, str] = {}
    for source in sources:
        for name in _NAMED_TOKENS:
            token = source.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                named.setdefault(name, text)
    return named


def _read_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Gather the chat templates; a file of its own outweighs tokenizer_config.json."""
    templates: dict[str, str] = {}
    stored = _read_settings(folder, "chat_template.json").get("chat_template")
    for source in (settings.get("chat_template"), stored):
        if isinstance(source, str):
            templates["default"] = source
        elif isinstance(source, list):
            templates |= _named_templates(source, folder)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8", errors="replace")
    own = folder / "chat_template.jinja"
    if own.is_file():
        templates["default"] = own.read_text(encoding="utf-8", errors="replace")
    return templates


def _named_templates(entries: list[Any], folder: Path) -> dict[str, str]:
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in entries}
    except (KeyError, TypeError) as error:
        problem = f"{folder}: a chat template in a list of several has no name or no text."
        raise TextError(problem, "Download the tokenizer_config.json again.") from error


def _read_settings(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    return read_json_object(path, MAX_SETTINGS_BYTES) if path.is_file() else {}
