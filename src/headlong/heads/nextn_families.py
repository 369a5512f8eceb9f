"""The published families of native MTP layers, and the switches in which their maths differ.

In:  an architecture; the table in `nextn_families.toml`; or the config.json of a head folder.
Out: the family's five switches. How its tensors are named is settled when the file is opened
(`weights/mtp_names.py`), and its layer is built by the architecture's own file. Rotary offset is no
switch: a layer that counts all positions one higher computes the same. Nothing here computes.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from headlong.errors import HeadError
from headlong.heads.head_weights import HEAD_REMEDY
from headlong.weights.mapped_file import shown


@dataclass(frozen=True, slots=True)
class NextnSwitches:
    """The five ways in which native MTP layers differ."""

    concat: Literal["embedding_first", "hidden_first"] = "embedding_first"
    """Order of the two halves that the projection reads."""
    trunk: Literal["normed", "raw"] = "normed"
    """The backbone's hidden state after or before its final norm."""
    carried: Literal["normed", "raw"] = "normed"
    """What the next depth reads: the layer's result after or before the head's final norm."""
    norm: Literal["plain", "one_plus"] = "plain"
    """Norms multiply by w, or by 1 + w (zero-centred weights)."""
    first_embedding: Literal["kept", "zeroed"] = "kept"
    """Whether the row at position 0 sees its token."""


@dataclass(frozen=True, slots=True)
class NextnFamily:
    """One row of the table."""

    name: str
    architectures: list[str]
    switches: NextnSwitches = NextnSwitches()


_TABLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("nextn_families.toml").read_text("utf-8")
)
FAMILIES = {
    architecture: NextnFamily(**row | {"switches": NextnSwitches(**row.get("switches", {}))})
    for row in _TABLE["family"]
    for architecture in row["architectures"]
}
"""By GGUF's name of the architecture."""


def write_switches(switches: NextnSwitches) -> dict[str, str]:
    """Return switches as config.json holds them."""
    return asdict(switches)


def read_switches(config: Mapping[str, Any], source: str) -> NextnSwitches:
    """Read the switches of a head folder; all five must be there."""
    given = config.get("nextn")
    allowed = {field.name: get_args(field.type) for field in fields(NextnSwitches)}
    if not isinstance(given, dict) or given.keys() != allowed.keys():
        raise HeadError(
            f"{source}: config.json has nextn switches {shown(given)}.",
            f"It must give {', '.join(allowed)} and nothing else.",
        )
    for name, choices in allowed.items():
        if given[name] not in choices:
            raise HeadError(
                f"{source}: the nextn switch {name} is {shown(given[name])}.",
                f"It must be one of {', '.join(choices)}. {HEAD_REMEDY}",
            )
    return NextnSwitches(**given)
