"""What scripted engines do wrong when they are told to."""

from dataclasses import dataclass

FAULTS = (
    "lie",  # says another token from `at_token` on
    "uniform",  # draws sampled tokens from the wrong distribution
    "mixed",  # says wrong tokens in greedy answers while others are sampled
    "stall",  # says nothing for `seconds` before `at_token`
    "slow",  # waits `seconds` before every event
    "cut",  # ends the connection before `at_token`
    "reset",  # the same, with a reset instead of a close
    "half_event",  # cuts within an event
    "garbage",  # sends what is no JSON before `at_token`
    "status",  # answers with the HTTP status `status`
    "content_type",  # answers with a page
    "huge",  # sends an event of 64 MiB without an end
    "extra",  # adds fields nobody knows, and comments
    "wrong_index",
    "beyond_vocabulary",
    "beyond_limit",  # says more tokens than were asked for
    "behind_end",  # says tokens behind the finish
    "nan",  # sends NaN for a log-probability
    "no_end",  # closes in good order before the last event
    "hang",  # says nothing for `seconds` behind the last token
    "error_event",  # reports a failure within the stream
)


@dataclass(frozen=True)
class Fault:
    """What an engine does wrong with one request."""

    kind: str
    at_token: int = 3
    seconds: float = 0.0
    status: int = 500
    retry_after: str | None = None

    def __post_init__(self) -> None:
        assert self.kind in FAULTS, self.kind
