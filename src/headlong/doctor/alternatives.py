"""The other ways to read a head: the mistakes exporters make, undone one at a time.

In:  a head that was built, and its weights.
Out: `Alternative`s: the same head with the halves of its input exchanged, the other norm, taps one
layer off, its vocabulary sorted. If one of them drafts clearly better than the head as it is, that
very mistake was made. Nothing here decides that; `draft_checks` measures.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from headlong.arrays import IntArray
from headlong.doctor.probe import ProbeRows
from headlong.heads.eagle3 import LAYER, NUM_TAPS, Eagle3Head
from headlong.heads.head import Head
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import HeadWeights
from headlong.heads.nextn import NextnHead
from headlong.heads.parallel import MedusaHeads, MetaHeads
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attention, Experts, GatedMlp, Layer, Norm, Router
from headlong.weights.tensors import StoredTensor

Concat: TypeAlias = Literal["embedding_first", "hidden_first"]
Normed: TypeAlias = Literal["normed", "raw"]

_NORMED = (Norm, Layer, Attention, GatedMlp, Experts, Router)
_QKV = tuple(f"{LAYER}self_attn.{part}_proj.weight" for part in "qkv")


@dataclass(frozen=True, slots=True)
class Alternative:
    """One other reading of a head."""

    name: str
    """What is read differently, to complete "it drafts better with …"."""
    remedy: str
    head: Head
    read: Callable[[ProbeRows], ProbeRows] = lambda probed: probed
    """What the head listens to, where that is the difference."""


def list_alternatives(
    head: Head, weights: HeadWeights | None, backbone: Backbone
) -> Iterator[Alternative]:
    """Make every other reading that this kind of head has."""
    if isinstance(head, NextnHead):
        yield from _of_nextn(head)
    elif isinstance(head, Eagle3Head):
        assert weights is not None
        yield from _of_eagle3(head, weights, backbone)
        yield from _of_taps(head, backbone.config.num_layers)
    elif isinstance(head, MedusaHeads):
        yield Alternative(
            "the hidden state before the final norm",
            "Export the heads for states after the final norm, which is what they are given.",
            head,
            _exchange_norms,
        )
    elif isinstance(head, MetaHeads):
        yield from _of_taps(head, backbone.config.num_layers)
    yield from _of_vocabulary(head)


def taps_needed(head: Head, num_layers: int) -> tuple[int, ...]:
    """Return every layer that the head or one of its other readings taps, in ascending order."""
    taps = set(head.tap_layers)
    for shift in (-1, 1):
        shifted = [tap + shift for tap in head.tap_layers]
        taps |= set(shifted) if _can_tap(shifted, num_layers) else set()
    return tuple(sorted(taps))


def _of_nextn(head: NextnHead) -> Iterator[Alternative]:
    switches = head.switches
    is_embedding_first = switches.concat == "embedding_first"
    concat: Concat = "hidden_first" if is_embedding_first else "embedding_first"
    trunk: Normed = "raw" if switches.trunk == "normed" else "normed"
    carried: Normed = "raw" if switches.carried == "normed" else "normed"
    norm = "plain" if switches.norm == "one_plus" else "one_plus"
    before = {"raw": "before", "normed": "after"}
    factor = "1 + w" if norm == "one_plus" else "w"
    for option, value, name, other in (
        ("concat", concat, f"the halves of fc's input in the other order ({concat})",
         replace(head, switches=replace(switches, concat=concat))),
        ("trunk", trunk, f"the hidden state {before[trunk]} the final norm ({trunk})",
         replace(head, switches=replace(switches, trunk=trunk))),
        ("carried", carried, f"the carried state {before[carried]} the head's norm",
         replace(head, switches=replace(switches, carried=carried))),
        ("norm", norm, f"norms that multiply by {factor} ({norm})",
         _shift_norms(head, 1.0 if norm == "one_plus" else -1.0)),
    ):  # fmt: skip
        remedy = f"Set {option} to {value!r} in the head's config.json (nextn), or export it so."
        yield Alternative(name, remedy, other)


def _of_eagle3(head: Eagle3Head, weights: HeadWeights, backbone: Backbone) -> Iterator[Alternative]:
    def rebuilt(names: Sequence[str], num_parts: int, order: Sequence[int]) -> Head:
        tensors = dict(weights.tensors)
        for name in names:
            tensors[name] = _reorder_columns(tensors[name], num_parts, order)
        return build_head(replace(weights, tensors=tensors), backbone)

    yield Alternative(
        "the halves of q/k/v's input in the other order",
        "Its q/k/v read [state, embedding]; the format has [embedding, state]. Exchange the column "
        f"halves of {LAYER}self_attn.{{q,k,v}}_proj in the export.",
        rebuilt(_QKV, 2, (1, 0)),
    )
    attention = head.layer.attention
    assert attention.beside_norm is not None
    exchanged = replace(attention, norm=attention.beside_norm, beside_norm=attention.norm)
    yield Alternative(
        "its two input norms exchanged",
        f"{LAYER}input_layernorm belongs to the embedding, {LAYER}hidden_norm to the state; "
        "exchange them in the export.",
        replace(head, layer=Layer(exchanged, head.layer.channel)),
    )
    said = not attention.adds_to_normed
    yield Alternative(
        f"norm_before_residual {'on' if said else 'off'}",
        f"Set norm_before_residual to {str(said).lower()} in the head's config.json.",
        replace(head, layer=Layer(replace(attention, adds_to_normed=said), head.layer.channel)),
    )
    yield Alternative(
        "the tapped states in the opposite order",
        "fc must read the lowest tapped layer first; reverse the thirds of fc's columns.",
        rebuilt(["fc.weight"], NUM_TAPS, (2, 1, 0)),
    )


def _of_taps(head: Eagle3Head | MetaHeads, num_layers: int) -> Iterator[Alternative]:
    for shift, word in ((-1, "earlier"), (1, "later")):
        taps = tuple(tap + shift for tap in head.tap_layers)
        if _can_tap(taps, num_layers):
            yield Alternative(
                f"taps one layer {word} ({', '.join(map(str, taps))})",
                "Engines count taps differently; name the layers whose inputs are meant in "
                "config.json (eagle_aux_hidden_state_layer_ids).",
                replace(head, tap_layers=taps),
            )


def _of_vocabulary(head: Head) -> Iterator[Alternative]:
    vocabulary = head.vocabulary
    if vocabulary is None or bool((np.diff(vocabulary) > 0).all()):
        return
    ascending: IntArray = np.sort(vocabulary)
    assert isinstance(head, Eagle3Head | NextnHead | MedusaHeads)
    yield Alternative(
        "its draft tokens in ascending order",
        "d2t (or token_map) was shuffled against the rows of lm_head; export both together.",
        replace(head, vocabulary=ascending),
    )


def _can_tap(taps: Sequence[int], num_layers: int) -> bool:
    return all(0 <= tap < num_layers for tap in taps)


def _exchange_norms(probed: ProbeRows) -> ProbeRows:
    hidden = probed.hidden
    return replace(probed, hidden=HiddenRows(hidden.normed, hidden.raw, hidden.taps))


def _shift_norms(head: NextnHead, offset: float) -> NextnHead:
    """Return the head as it would be if its norms were centred otherwise."""

    def shifted(part: Any) -> Any:
        if isinstance(part, Norm):
            return Norm((part.weight + np.float32(offset)).astype(np.float32), part.eps)
        found = {one.name: getattr(part, one.name) for one in fields(part)}
        own = {n: shifted(x) for n, x in found.items() if isinstance(x, _NORMED)}
        return replace(part, **own)

    switches = replace(head.switches, norm="one_plus" if offset > 0 else "plain")
    moved: NextnHead = replace(shifted(head), switches=switches)
    return moved


def _reorder_columns(tensor: StoredTensor, num_parts: int, order: Sequence[int]) -> StoredTensor:
    """Return a float matrix with equal blocks of its columns in another order."""
    blocks = tensor.data.reshape(len(tensor.data), num_parts, -1)[:, list(order)]
    return replace(tensor, data=np.ascontiguousarray(blocks.reshape(len(tensor.data), -1)))
