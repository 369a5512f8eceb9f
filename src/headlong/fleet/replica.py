"""A replica: one engine in another process, at an address, with what is known about it.

The router reads these records, health and probe write them; all in the fleet's event loop.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import httpx

from headlong.decode.request import Request
from headlong.errors import RequestError
from headlong.fleet.dialect import Dialect, Feature, ReplicaLoad
from headlong.fleet.verdict import Verdict


class ReplicaState(StrEnum):
    """Whether a replica gets requests."""

    STARTING = "starting"
    """Has not answered yet."""
    UP = "up"
    SUSPECT = "suspect"
    """Failed a moment ago: gets requests only where no other can take them."""
    DOWN = "down"
    """Gets none until it has been seen well again."""


@dataclass(slots=True, eq=False)
class Replica:
    """One engine that requests can be sent to."""

    url: str
    """Its address, without a slash at the end."""
    dialect: Dialect
    num_draft_tokens: int = 0
    """What it drafts at most, K; 0 for a plain one."""
    api_key: str | None = field(default=None, repr=False)
    model: str = ""
    """What it calls its model; known once it has been asked."""
    max_tokens: int | None = None
    """Tokens of prompt and answer that it takes, where it says so."""
    state: ReplicaState = ReplicaState.STARTING
    problem: str | None = None
    """Why it gets no requests or is suspect, in a whole sentence."""
    is_isolated: bool = False
    """Gets no requests for now, since it is probed and has known faults."""
    verdict: Verdict | None = None
    """None for a plain one, and until the probe has looked at one that drafts."""
    load: ReplicaLoad = field(default_factory=ReplicaLoad)
    num_in_flight: int = 0
    """Requests of this front that it is working on."""
    num_answered: int = 0
    num_failed: int = 0

    @property
    def drafts(self) -> bool:
        """Whether it speculates."""
        return self.num_draft_tokens > 0

    @property
    def knows_tokens(self) -> bool:
        """Whether it takes and gives token ids; else text goes to and fro."""
        return Feature.TOKEN_IDS in self.dialect.features

    @property
    def name(self) -> str:
        """How people and metrics call it: its address without the scheme."""
        return self.url.partition("://")[2]

    @property
    def is_usable(self) -> bool:
        """Whether it may get requests: seen well, and trusted where it drafts."""
        if self.is_isolated or self.state not in (ReplicaState.UP, ReplicaState.SUSPECT):
            return False
        return not self.drafts or (self.verdict is not None and self.verdict.problem is None)

    @property
    def obstacle(self) -> str | None:
        """Why it gets no requests now, in a whole sentence; None where it may get some."""
        if self.is_usable:
            return None
        if self.problem is not None:
            return self.problem
        if self.state is ReplicaState.STARTING:
            return f"The replica {self.name} has not answered yet."
        if self.is_isolated:
            return f"The replica {self.name} gets none while it is probed again."
        refused = None if self.verdict is None else self.verdict.problem
        return refused or f"The replica {self.name} has not been probed yet."

    def missing(self, request: Request) -> Feature | None:
        """Return what a request needs and this replica lacks; None when it can run."""
        return self.dialect.missing(request, with_drafts=self.drafts)

    def has_room(self, request: Request) -> bool:
        """Tell whether prompt and answer fit into its context, as far as that is known."""
        num_tokens = len(request.prompt_ids) + request.stopping.max_tokens
        return self.max_tokens is None or num_tokens <= self.max_tokens


def base_url(address: str) -> str:
    """Return an engine's address as all paths here follow it: without the /v1 that clients want.

    Raises:
        RequestError: It is none.
    """
    try:
        url = httpx.URL(address)
        is_address = url.scheme in ("http", "https") and url.host and (url.port or 1) < 1 << 16
    except httpx.InvalidURL:
        is_address = False
    if not is_address or url.query or url.fragment:
        shown = address.rpartition("@")[2]  # before it may be a password
        problem = f"The address {shown!r} is none that an engine can have."
        raise RequestError(problem, "Write it like http://10.0.0.5:8000.")
    if url.userinfo:
        problem = f"The address of the engine at {url.host} has a user or a password in it."
        raise RequestError(problem, "Leave them out; --engine-key-file names a file with a key.")
    path = url.raw_path.decode("ascii").rstrip("/").removesuffix("/v1")
    return f"{url.scheme}://{url.netloc.decode('ascii')}{path}"
