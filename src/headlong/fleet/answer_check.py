"""Checks what an engine in another process answers, before anybody sees it.

In:  the request, and `Delta`s as a dialect reads them.
Out: the same in one form: the token that ends an answer comes with the reason and with all that is
     told behind it. What cannot be an answer to the request is refused with `GarbledError`.
"""

from collections.abc import Sequence
from dataclasses import replace

from headlong.decode.logprobs import TokenLogprob
from headlong.decode.request import Request
from headlong.engine.request import FinishReason
from headlong.errors import GarbledError
from headlong.fleet.dialect import Delta

_FEW = 8
_ROUNDING = 1e-3
"""How far above 0 a log-probability may be by rounding."""


class AnswerCheck:
    """Follows one answer."""

    counts_as_we_do = True
    """Whether the engine's tokens are ours, so that `max_tokens` means the same to both."""

    def __init__(self, request: Request, vocab_size: int) -> None:
        """Begin an answer to `request`; token ids go up to `vocab_size`."""
        self._request = request
        self._vocab_size = vocab_size
        self._form = None if request.grammar is None else request.grammar.begin_spread()
        self._num_left = request.stopping.max_tokens
        self._told = Delta()  # what is told besides tokens, in whichever event
        self._last: Delta | None = None  # what ends the answer, until nothing follows any more

    @property
    def is_complete(self) -> bool:
        """Whether all tokens of the answer are there."""
        return self._last is not None

    def read(self, delta: Delta) -> Delta:
        """Return what a delta brings; its tokens wait for `end` where they are the last.

        Raises:
            GarbledError: It cannot be an answer to the request.
        """
        self._note(delta)
        if self._last is not None:  # tokens behind the end are an engine's slip, and dropped
            return Delta()
        delta = self._cut(delta)
        if self._request.sampling.logprobs is not None:
            _check_logprobs(delta.token_ids, delta.logprobs)
        if delta.finish_reason is FinishReason.STOP:
            delta = self._with_end_token(delta)
        self._check_tokens(delta.token_ids)
        if delta.finish_reason is None:
            return delta
        self._last = delta
        return Delta()

    def end(self) -> Delta:
        """Return the last tokens, why they are the last, and what was told behind them."""
        if self._last is None:
            raise GarbledError("The engine broke its answer off.", "See its log.")
        told = self._told
        return replace(
            self._last,
            stats=told.stats,
            num_cached_tokens=told.num_cached_tokens,
            prompt_logprobs=told.prompt_logprobs,
            is_end=True,
        )

    def _note(self, delta: Delta) -> None:
        """Keep what is told besides tokens."""
        told, num_cached = self._told, delta.num_cached_tokens
        if delta.stats is None and num_cached is None and delta.prompt_logprobs is None:
            return
        self._told = Delta(
            stats=delta.stats or told.stats,
            num_cached_tokens=told.num_cached_tokens if num_cached is None else num_cached,
            prompt_logprobs=delta.prompt_logprobs or told.prompt_logprobs,
        )

    def _cut(self, delta: Delta) -> Delta:
        """Return a delta that ends where the answer has to, with the reason if it does."""
        ids, stopping, eos_ids = delta.token_ids, self._request.stopping, self._request.eos_ids
        ends = [] if stopping.ignore_eos else [i for i, one in enumerate(ids) if one in eos_ids]
        num = min([one + 1 for one in ends[:1]] + [self._num_left, len(ids)])
        self._num_left -= num
        reason = delta.finish_reason
        if reason is None and not ends and self._num_left:
            return delta
        if ends and num == ends[0] + 1:
            reason = FinishReason.STOP
        elif not self._num_left:
            reason = FinishReason.LENGTH
        elif reason is FinishReason.LENGTH and self.counts_as_we_do:
            problem = f"The engine ended its answer {self._num_left} tokens early, for want of room"
            raise GarbledError(f"{problem}.", "Start it with a longer context.")
        return replace(
            delta, token_ids=ids[:num], logprobs=delta.logprobs[:num], finish_reason=reason
        )

    def _with_end_token(self, delta: Delta) -> Delta:
        """Return the last delta with the token that ended the text, which some engines keep."""
        eos_ids = self._request.eos_ids
        if not eos_ids or (delta.token_ids and delta.token_ids[-1] in eos_ids):
            return delta
        return replace(delta, token_ids=(*delta.token_ids, min(eos_ids)))

    def _check_tokens(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self._vocab_size:
                problem = f"The engine sent token {token_id}; there are {self._vocab_size}."
                raise GarbledError(problem, "It must run the same model as the front.")
            if self._form is None:
                continue
            if not self._form.accepts(token_id):
                problem = "The engine's answer does not have the form that was asked for."
                raise GarbledError(problem, "Its structured output is broken; see its log.")
            self._form.push(token_id)


class SpeltAnswerCheck(AnswerCheck):
    """Follows an answer that came as text and was spelt in our tokens, which may be more or fewer.

    The newest token waits for the next event, since the one that ends the answer brings none.
    """

    counts_as_we_do = False

    def __init__(self, request: Request, vocab_size: int) -> None:
        """Begin an answer to `request`, of about as many tokens as it may have."""
        super().__init__(request, vocab_size)
        self._num_left = 2 * self._num_left + _FEW
        self._held: tuple[int, ...] = ()

    def read(self, delta: Delta) -> Delta:
        """Return what a delta brings, and what was held back of the one before."""
        ids = (*self._held, *delta.token_ids)
        num = len(ids) if delta.finish_reason is not None else max(0, len(ids) - 1)
        self._held = ids[num:]
        return super().read(replace(delta, token_ids=ids[:num]))


class AnswerAsSent(AnswerCheck):
    """Follows an answer without cutting it: the probe judges engines by what they really send."""

    def read(self, delta: Delta) -> Delta:
        """Return the tokens of a delta, those behind the end included."""
        self._note(delta)
        if self._last is None and delta.finish_reason is not None:
            self._last = Delta(finish_reason=delta.finish_reason)
        return Delta(delta.token_ids, delta.logprobs)


def check_whole(request: Request, sent: Delta, vocab_size: int) -> Delta:
    """Return a whole answer as clients would get it."""
    check = AnswerCheck(request, vocab_size)
    check.read(sent)
    return check.end()


def _check_logprobs(token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
    """Refuse log-probabilities that are not those of the tokens."""
    fit = len(token_ids) == len(logprobs) and all(
        one.token_id == token_id and one.logprob <= _ROUNDING  # not a number is neither
        for token_id, one in zip(token_ids, logprobs, strict=True)
    )
    if not fit:
        problem = "The engine's log-probabilities are not those of its tokens."
        raise GarbledError(problem, "Report it to its makers.")
