"""Pre-tokenizers by the names GGUF files use: how text is cut before byte-pair merging.

In:  the value of `tokenizer.ggml.pre`.
Out: a `PreTokenizer`, which builds its parts for the `tokenizers` library.
The patterns are those of the models' own tokenizer.json; a name that is not here is refused, since
a wrong cut gives tokens the model has never seen, and it silently answers worse.
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from headlong.errors import TextError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one family of models cuts text, and the merge habits that go with it."""

    patterns: tuple[str, ...] = ()
    """Cut at every match of the first, then cut the parts at every match of the second, …"""
    composes: bool = False
    """Put the text into Unicode's composed form (NFC) first."""
    ignores_merges: bool = False
    """A piece that is a token as a whole is taken whole, whatever the merges say."""
    adds_bos: bool = False
    """Prompts begin with BOS unless the file says otherwise."""

    def make_pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Build the pre-tokenizer."""
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        # ByteLevel only spells bytes as letters here; the pattern it brings along is GPT-2's.
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, spell])


def find_pre_tokenizer(name: object) -> PreTokenizer:
    """Return the pre-tokenizer called `name`, or refuse it."""
    found = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if found is None:
        stated = f"is {name!r}, which is not one we know" if name is not None else "is missing"
        raise TextError(
            f"The GGUF file's tokenizer.ggml.pre {stated}, so its text cannot be cut correctly.",
            "Use the model's Hugging Face folder, whose tokenizer.json says how, or a newer GGUF.",
        )
    return found


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_WORDS_AND_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _WORDS_AND_SIGNS
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _WORDS_AND_SIGNS
_QWEN35 = (
    _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    + _SPACES
)

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SIGNS_AND_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + _SPACES
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    + _SIGNS_AND_SLASH
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}"
) + _SIGNS_AND_SLASH

_ASIAN = r"[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
)

_DIGITS_RULE = PreTokenizer((r"\p{N}", _GPT2))
_COMPOSED_RULE = PreTokenizer((_GPT2,), composes=True)
_LLAMA3_RULE = PreTokenizer((_LLAMA3,), ignores_merges=True, adds_bos=True)

PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "mpt": _COMPOSED_RULE,
    "olmo": _COMPOSED_RULE,
    "smollm": _DIGITS_RULE,
    "starcoder": _DIGITS_RULE,
    "refact": _DIGITS_RULE,
    "qwen2": PreTokenizer((_QWEN2,), composes=True),
    "qwen35": PreTokenizer((_QWEN35,), composes=True),
    "deepseek-r1-qwen": PreTokenizer((_QWEN2,)),
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "glm4": PreTokenizer((_LLAMA3,)),
    "chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "llama4": PreTokenizer((_GPT4O,)),
    "tekken": PreTokenizer((_TEKKEN,), ignores_merges=True, adds_bos=True),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _ASIAN, r"\p{N}")),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_V3)),
}
