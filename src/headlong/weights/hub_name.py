"""How a model of the Hugging Face hub is named.

`org/name`, `org/name@revision`, `org/name:file.gguf` or `org/name@revision:file.gguf`. Apart from
`hub`, so that telling a hub name from other names does not load the hub's client.
"""

import re
from dataclasses import dataclass

_NAME = re.compile(
    r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[^:\s]+))?(?::(?P<file>\S.*))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class HubName:
    """One repository of the hub, or one file of it."""

    repo: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return self.repo + revision + (f":{self.file}" if self.file else "")


def parse_hub_name(name: str) -> HubName | None:
    """Read `org/name[@revision][:file]`; None when it is none."""
    found = _NAME.fullmatch(name)
    return HubName(found["repo"], found["revision"], found["file"]) if found else None
