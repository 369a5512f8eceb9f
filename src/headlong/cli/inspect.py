"""`headlong inspect [MODEL]`: show what is inside a model file.

In:  a model's name; none means the default model. Perhaps a head folder to hold against it. Or a
     head alone.
Out: sizes, storage types, heads, memory; of a head, what it is and whom it fits. Weights are never
     unpacked for this.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headlong.cli.bars import ProgressBar
from headlong.cli.model_arguments import add_model_arguments
from headlong.cli.output import (
    add_json_argument,
    format_bytes,
    format_path,
    make_console,
    printable,
    write_json,
)
from headlong.weights.sources import resolve_model

if TYPE_CHECKING:
    from headlong.cli.model_description import HeadDescription, ModelDescription
    from headlong.models.experts_config import ExpertsConfig
    from headlong.models.gemma4_config import Gemma4Config
    from headlong.models.model_config import ModelConfig

_NAMES_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a model or a head (default: the default model)",
    )
    parser.add_argument(
        "--head", type=Path, metavar="DIR", help="also hold the head in this folder against it"
    )
    parser.add_argument("--all", action="store_true", help="list tensors in full, however many")
    add_model_arguments(parser, "backend")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Describe the model."""
    # Imported now: they bring numpy, which --help can do without.
    from headlong.cli.head_facts import describe_head_file
    from headlong.cli.head_view import print_head
    from headlong.cli.model_description import describe_model
    from headlong.ops.backends import make_ops

    ops = make_ops(args.backend)
    with ProgressBar() as progress:
        path = resolve_model(args.model, progress=progress)
    head = None if args.model is None or args.head else describe_head_file(path)
    if head is not None:
        write_json(head.to_dict()) if args.json else print_head(head, make_console())
        return 0
    model = describe_model(path, ops, args.head)
    if args.json:
        write_json(model.to_dict())
    else:
        _print(model, make_console(), lists_all=args.all)
    has_misfit = args.head is not None and bool(model.heads[-1].problem)
    return 1 if has_misfit else 0


def _print(model: "ModelDescription", console: Console, *, lists_all: bool) -> None:
    console.print(Text(printable(model.path.name), style="bold"), soft_wrap=True)
    console.print(printable(format_path(model.path)), style="cyan", soft_wrap=True)
    console.print()
    most = len(model.head_tensors) + len(model.left_over) if lists_all else _NAMES_SHOWN
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    for label, value in (*_describe(model), *_describe_heads(model, most), *_memory(model)):
        facts.add_row(label, _clean(value))
    console.print(facts)
    console.print()
    console.print(Padding(_type_table(model), (0, 0, 0, 2), expand=False))


def _clean(value: str | Text) -> Text:
    """Take control characters out: names and texts come from a file that anyone may have made."""
    text = Text(value) if isinstance(value, str) else value
    text.plain = printable(text.plain)
    return text


def _describe(model: "ModelDescription") -> Iterator[tuple[str, str | Text]]:
    config, text = model.config, model.text
    if model.problem:
        yield "cannot run", Text(model.problem, style="red")
    layers = "" if config is None else f" · {config.num_layers} layers"
    yield "architecture", f"{model.architecture}{layers}"
    num_active, active = model.num_active_parameters, ""
    if num_active != model.num_parameters:
        active = f", {_millions(num_active)} active for each row"
    yield "parameters", f"{_millions(model.num_parameters)} in the backbone{active}"
    if config is not None:
        yield "sizes", f"hidden {config.hidden_size:,} · MLP {config.intermediate_size:,}"
        if config.experts is not None:
            yield "experts", _describe_experts(config.experts)
        yield "attention", _describe_attention(config)
        if config.gemma4 is not None:
            yield "", _describe_wide_layers(config.gemma4)
        yield "context", f"{config.context_length:,} tokens"
    if text.problem:
        yield "tokenizer", Text(text.problem, style="red")
    else:
        ends = ", ".join(text.eos_tokens) or "nothing"
        yield "tokenizer", f"{text.vocab_size:,} tokens · {text.kind} · a turn ends with {ends}"
        yield "chat template", "yes" if text.has_chat_template else "no: it continues text only"
    yield "file", f"{format_bytes(model.file_bytes)} · {model.format}"


def _describe_experts(sizes: "ExpertsConfig") -> str:
    shared = f" · a shared part of {sizes.shared_size:,}" if sizes.shared_size else ""
    return f"{sizes.num_chosen} of {sizes.num_experts} for each row, {sizes.expert_size:,}{shared}"


def _describe_wide_layers(sizes: "Gemma4Config") -> str:
    """Say how the layers that see everything differ, and how many keep no keys of their own."""
    plural = "" if sizes.num_global_kv_heads == 1 else "s"
    heads = f"{sizes.num_global_kv_heads} key/value head{plural}"
    text = f"the other layers have {heads} of size {sizes.global_head_dim}"
    if sizes.num_shared_layers:
        text += f" · the last {sizes.num_shared_layers} read those of earlier layers"
    return text


def _describe_attention(config: "ModelConfig") -> str:
    latent = config.latent
    if latent is not None:
        vector = f"a latent vector of {latent.rank} and {latent.rotary_dim} rotary numbers"
        return f"{config.num_heads} heads of size {config.head_dim} share {vector}"
    sharing = "1 key/value head"
    if config.num_kv_heads > 1:
        sharing = f"{config.num_kv_heads} key/value heads"
    window = ""
    if config.sliding_window and config.local_layers:
        window = f" · {len(config.local_layers)} layers look back {config.sliding_window:,}"
    return f"{config.num_heads} heads share {sharing} of size {config.head_dim}{window}"


def _describe_heads(model: "ModelDescription", most: int) -> Iterator[tuple[str, str | Text]]:
    if not model.heads and not model.head_tensors:
        yield "head", "none inside; n-grams can draft. --head DIR tries one from a folder"
    for head in model.heads:
        yield "head", _describe_head(head)
    if model.head_tensors:
        listed = _list_names(model.head_tensors, most)
        yield "head tensors", f"{len(model.head_tensors)} in the file: {listed}"
    if model.left_over:
        listed = _list_names(model.left_over, most)
        yield "left over", Text(f"{len(model.left_over)} tensors unread: {listed}", style="yellow")
    elif not model.problem:
        yield "left over", "nothing; every tensor is read"


def _describe_head(head: "HeadDescription") -> Text:
    if head.problem:
        return Text(f"{head.source}: cannot draft here. {head.problem}", style="red")
    vocabulary = f"{head.draft_vocab_size:,} tokens" if head.draft_vocab_size else "all tokens"
    taps = f"inputs of layers {', '.join(map(str, head.tap_layers))}" if head.tap_layers else ""
    lines = [
        f"{head.source}: {head.kind}, fits",
        f"drafts from {vocabulary} · reads {taps or 'the last hidden state'} · "
        f"{format_bytes(head.stored_bytes)} stored",
        *head.notes,
    ]
    if head.unused_tensors:
        lines.append(f"unread: {', '.join(head.unused_tensors)}")
    return Text("\n".join(lines))


def _memory(model: "ModelDescription") -> Iterator[tuple[str, str | Text]]:
    """Say what running it takes, part by part."""
    if model.weights_bytes is None or model.kv_bytes_per_token is None or model.config is None:
        return
    context = model.config.context_length
    per_token = model.kv_bytes_per_token
    parts = [
        f"{format_bytes(model.weights_bytes)} for the weights",
        f"{format_bytes(per_token * 1000)} for 1,000 tokens of KV cache, "
        f"{format_bytes(per_token * context)} for all {context:,}",
    ]
    if model.state_bytes_per_sequence:
        state = format_bytes(model.state_bytes_per_sequence)
        parts.append(f"{state} for the recurrent states of a sequence, snapshots included")
    parts += [
        f"{format_bytes(head.memory_bytes)} for the head {head.source}"
        for head in model.heads
        if not head.problem
    ]
    yield "memory", "\n".join(parts)
    yield "backend", f"{model.backend} ({model.backend_note})"


def _type_table(model: "ModelDescription") -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("stored as")
    for title in ("tensors", "parameters", "size", "bits each"):
        table.add_column(title, justify="right")
    table.add_column("runs as")
    for share in model.types:
        bits = 8 * share.num_bytes / share.num_parameters if share.num_parameters else 0.0
        table.add_row(
            share.type,
            f"{share.num_tensors:,}",
            _millions(share.num_parameters),
            format_bytes(share.num_bytes),
            f"{bits:.2f}",
            ", ".join(share.packed_as),
        )
    return table


def _millions(number: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)


def _list_names(names: tuple[str, ...], most: int) -> str:
    more = len(names) - most
    listed = ", ".join(names[:most])
    return listed if more <= 0 else f"{listed} and {more} more (--all lists them)"
