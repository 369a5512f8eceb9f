"""What the dialects share: which requests they can take, and how errors are told over HTTP."""

from headlong.decode.request import Request
from headlong.errors import HeadlongError
from headlong.fleet.dialect import Call, Feature, ReplicaLoad
from headlong.fleet.needs import first_missing
from headlong.fleet.refusals import http_refusal


class HttpDialect:
    """An engine that says no more of itself than it must."""

    features: frozenset[Feature] = frozenset()
    features_with_drafts: frozenset[Feature] = frozenset()
    metrics_path: str | None = None
    keeps_connections: bool = True

    def missing(self, request: Request, *, with_drafts: bool) -> Feature | None:
        """Return what `request` needs and this engine lacks; None when it can run."""
        return first_missing(request, self.features_with_drafts if with_drafts else self.features)

    def tokenize(self, text: str, model: str) -> Call | None:
        """Return None: it has no path for that."""
        return None

    def refusal(self, status: int, body: bytes, retry_after: str | None = None) -> HeadlongError:
        """Return an HTTP error as one of ours."""
        return http_refusal(status, body, retry_after)

    def read_load(self, metrics: str) -> ReplicaLoad:
        """Return nothing: it says nothing of its load."""
        return ReplicaLoad()
