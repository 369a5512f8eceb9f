"""Which draft policy a request asked for, by whichever name it knows.

In:  the body's fields, the header, and the default of the API key or the server.
Out: one `MtpMode`. Ways that disagree are refused: nobody could tell which was meant.
"""

from headlong.config import MAX_DRAFT_TOKENS, MtpMode, check_mtp
from headlong.errors import RequestError
from headlong.server.openai_errors import bad_request
from headlong.server.protocol import DraftFields

HEADER = "X-Headlong-MTP"


def choose_mtp(body: DraftFields, header: str | None, default: MtpMode) -> MtpMode:
    """Return the request's mode, or `default` where it names none."""
    given: dict[str, MtpMode] = {}
    if body.mtp is not None:
        given["mtp"] = body.mtp
    if header is not None:
        given[HEADER] = _read_header(header)
    if body.num_speculative_tokens is not None:
        given["num_speculative_tokens"] = body.num_speculative_tokens or "off"
    if body.speculative_n_max is not None:
        given["speculative.n_max"] = body.speculative_n_max or "off"
    if body.speculative is not None:
        given["speculative: n_max"] = body.speculative.n_max or "off"
    if len(set(given.values())) > 1:
        stated = ", ".join(f"{name} means {mode}" for name, mode in given.items())
        message = f"The request says in several ways how to draft: {stated}. Keep one."
        raise bad_request(message, "mtp", "invalid_value")
    return next(iter(given.values()), default)


def _read_header(value: str) -> MtpMode:
    text = value.strip().lower()
    try:
        return check_mtp(int(text) if text.isdecimal() and len(text) < 9 else text)
    except RequestError as error:
        allowed = f'"auto", "off", or a whole number from 1 to {MAX_DRAFT_TOKENS}'
        message = f"The header {HEADER} is {value[:80]!r}. It must be {allowed}."
        raise bad_request(message, HEADER, "invalid_value") from error
