"""Is the model itself sound, and does its tokenizer belong to it?

In:  a subject. Out: findings about the file, the tokens, the end of a turn and the chat template.
A head can only be judged on a backbone that computes and a tokenizer that speaks its ids.
"""

from collections.abc import Iterator

from headlong.doctor.finding import Check, Finding, refused, skipped
from headlong.doctor.subject import Subject
from headlong.errors import HeadlongError
from headlong.models.traffic import idle_parameters
from headlong.text.tokenizer import Tokenizer

SAMPLE = "def f(x):\n    return x ** 2  # naïve – “2”\n"
"""Code, indentation, accents and typographic signs: what a wrong tokenizer garbles first."""

MIN_TOKEN_SHARE = 0.9
"""Vocabularies are padded to round sizes; a tokenizer much smaller is another model's."""

_MESSAGES = [{"role": "user", "content": "Hello"}]
_NAMES_SHOWN = 5


def check_model(subject: Subject) -> Finding:
    """Can the backbone be put together?"""
    if "model" in subject.refusals:
        return refused("model", subject.refusals["model"])
    assert subject.loaded is not None
    assert subject.path is not None
    backbone, report = subject.loaded.backbone, subject.loaded.report
    config, state_bytes = backbone.config, backbone.make_cache().bytes_for(0)
    names = sorted({*report.left_over} - {*report.head_tensors})
    check = Check(
        "model",
        {
            "architecture": config.architecture,
            "num_layers": config.num_layers,
            "vocab_size": config.vocab_size,
            "experts": None if config.experts is None else config.experts.num_experts,
            "idle_parameters": idle_parameters(backbone),
            "state_bytes": state_bytes,
            "left_over": names,
        },
    )
    seen = (
        f"{subject.path.name}: {config.architecture}, {config.num_layers} layers, "
        f"{len(report.used)} tensors read"
    )
    if config.experts is not None:
        experts = config.experts
        seen += f", {experts.num_chosen} of {experts.num_experts} experts for each row"
    if state_bytes:
        seen += f", recurrent layers that keep {state_bytes / 1e6:.1f} MB of a sequence"
    if names:
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return check.warning(
            f"{seen}; {len(names)} tensors have no place in it: "
            f"{', '.join(names[:_NAMES_SHOWN])}{more}.",
            "If they matter, the model is of another kind than its file says; `headlong inspect "
            "--all` lists them.",
        )
    return check.ok(seen)


def check_tokenizer(subject: Subject) -> Iterator[Finding]:
    """Does the tokenizer load, fit the embedding, and give back what it was given?"""
    if "tokenizer" in subject.refusals:
        yield refused("tokenizer", subject.refusals["tokenizer"])
        return
    if subject.tokenizer is None or subject.backbone is None:
        yield skipped("tokenizer", "the model could not be read")
        return
    tokenizer, rows = subject.tokenizer, subject.backbone.config.vocab_size
    yield _check_sizes(tokenizer, rows)
    yield _check_round_trip(tokenizer)
    yield _check_ends(tokenizer, rows)
    yield _check_template(tokenizer, rows)


def _check_sizes(tokenizer: Tokenizer, rows: int) -> Finding:
    size = tokenizer.vocab_size
    check = Check("tokenizer", {"tokens": size, "embedding_rows": rows})
    if size > rows:
        return check.fault(
            f"The tokenizer has {size:,} tokens, the embedding {rows:,} rows: ids from {rows:,} on "
            "would read nothing.",
            "Tokenizer and weights are of different models; pull both again from one place.",
        )
    if size < MIN_TOKEN_SHARE * rows:
        return check.warning(
            f"The tokenizer has only {size:,} tokens for {rows:,} rows of the embedding.",
            "Padding explains a few hundred; check that both are of the same model.",
        )
    padding = "" if size == rows else f", padded to {rows:,} rows"
    return check.ok(f"{size:,} tokens{padding}, {tokenizer.kind}")


def _check_round_trip(tokenizer: Tokenizer) -> Finding:
    check = Check("round trip")
    ids = tokenizer.encode(SAMPLE, add_special=False)
    back = tokenizer.decode(ids)
    if back.strip() != SAMPLE.strip():
        return check.fault(
            f"{SAMPLE.strip()!r} comes back as {back.strip()!r}.",
            "The vocabulary is damaged or of another kind than its file says; pull it again.",
            {"num_tokens": len(ids)},
        )
    return check.ok(f"code and accents come back from {len(ids)} tokens as they went in")


def _check_ends(tokenizer: Tokenizer, rows: int) -> Finding:
    ids = sorted(tokenizer.eos_ids)
    check = Check("end of turn", {"eos_ids": ids})
    beyond = [token_id for token_id in ids if not 0 <= token_id < rows]
    if beyond:
        return check.fault(
            f"The end-of-turn token {beyond[0]} is beyond the embedding's {rows:,} rows; the model "
            "can never say it.",
            "Fix eos_token_id in the model's configuration.",
        )
    if not ids:
        return check.warning(
            "No end-of-turn token is known: every answer runs to max_tokens.",
            "Give eos_token_id in generation_config.json, or tokenizer.ggml.eos_token_id.",
        )
    return check.ok(", ".join(map(tokenizer.token_text, ids)))


def _check_template(tokenizer: Tokenizer, rows: int) -> Finding:
    check = Check("chat template")
    if tokenizer.chat_template is None:
        return check.warning(
            "There is none: messages cannot be written as the model wants them.",
            "Use plain prompts, or an instruct version of the model.",
        )
    try:
        ids = tokenizer.encode_chat(_MESSAGES)
    except HeadlongError as error:
        return refused("chat template", error)
    beyond = [token_id for token_id in ids if token_id >= rows]
    if beyond:
        return check.fault(
            f"It writes token {beyond[0]}, which is beyond the embedding's {rows:,} rows.",
            "Tokenizer and weights are of different models; pull both again from one place.",
        )
    return check.ok(f"writes a greeting as {len(ids)} tokens", {"num_tokens": len(ids)})
