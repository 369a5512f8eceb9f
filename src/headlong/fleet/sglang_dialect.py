"""SGLang: `/generate` with token ids in and out.

Read in its sources (August 2026), not run. It tells all tokens so far in each event, or only the
new ones where it was started so; the number of tokens says which.
"""

from typing import Any

from headlong.config import SamplingParams
from headlong.decode.logprobs import TokenLogprob
from headlong.decode.request import Request
from headlong.decode.stats import DecodeStats, DrafterCount
from headlong.engine.request import FinishReason
from headlong.fleet.answer_parts import ENGINE, best, check_accepted
from headlong.fleet.dialect import AnswerReader, Call, Delta, Feature, ReplicaLoad
from headlong.fleet.fields import Fields, garbled, number, read_event, whole
from headlong.fleet.http_dialect import HttpDialect
from headlong.fleet.needs import held_tokens, is_greedy
from headlong.fleet.refusals import raise_failure, refusal
from headlong.fleet.scrape import Scrape


class SglangDialect(HttpDialect):
    """How SGLang is asked."""

    name = "sglang"
    features = frozenset(Feature) - {Feature.EMBEDDINGS, Feature.GRAMMAR}
    features_with_drafts = features
    health_path = "/health"
    metrics_path: str | None = "/metrics"

    def missing(self, request: Request, *, with_drafts: bool) -> Feature | None:
        """Return what is missing; its logprobs are those of the sampler, which penalties change."""
        lacking = super().missing(request, with_drafts=with_drafts)
        if lacking is None and request.sampling.logprobs is not None and not _is_raw(request):
            return Feature.LOGPROBS
        return lacking

    def write(self, request: Request, model: str) -> Call:
        """Return what to post; prompt logprobs come in one answer that does not stream."""
        sampling, stopping = request.sampling, request.stopping
        params: dict[str, Any] = {
            "max_new_tokens": stopping.max_tokens,
            "min_new_tokens": held_tokens(request),
            "ignore_eos": stopping.ignore_eos,
            "stop_token_ids": [] if stopping.ignore_eos else sorted(request.eos_ids),
            "temperature": 0,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
        }
        if not is_greedy(request):
            filters = {"top_k": sampling.top_k or -1, "top_p": sampling.top_p}
            params |= {"temperature": sampling.temperature, "min_p": sampling.min_p, **filters}
            params["sampling_seed"] = sampling.seed % 2**31
        if any(sampling.logit_bias.values()):
            params["logit_bias"] = {str(one): bias for one, bias in sampling.logit_bias.items()}
        if request.grammar is not None:
            params["json_schema"] = request.grammar.source
        body: dict[str, Any] = {
            "input_ids": list(request.prompt_ids),
            "sampling_params": params,
            "stream": request.prompt_logprobs is None,
        }
        tops = [one for one in (sampling.logprobs, request.prompt_logprobs) if one is not None]
        if tops:
            start = -1 if request.prompt_logprobs is None else 0
            body |= {"return_logprob": True, "logprob_start_len": start}
            body["top_logprobs_num"] = max(tops)
        if request.cache_salt:
            body["extra_key"] = request.cache_salt
        return Call("/generate", body)

    def reader(self, request: Request) -> AnswerReader:
        """Return the reader of the answer to `request`."""
        return SglangReader(request)

    def read_load(self, metrics: str) -> ReplicaLoad:
        """Return the load that a scrape tells."""
        seen = Scrape(metrics)
        running = seen.total("sglang:num_running_reqs")
        waiting = seen.total("sglang:num_queue_reqs")
        return ReplicaLoad(running, waiting, seen.highest("sglang:token_usage"))


class SglangReader:
    """Reads one answer, streamed or whole."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._num_tokens = 0

    def read(self, data: str) -> Delta:
        """Return what an event brings."""
        if data == "[DONE]":
            return Delta(is_end=True)
        event = read_event(data)
        raise_failure(event)
        about, finish = event.part("meta_info"), event.part("meta_info").part("finish_reason")
        if finish.text("type") == "abort":
            raise refusal(finish.whole("status_code") or 500, finish.text("message") or "")
        first = self._first_new(event, about)
        token_ids = event.wholes("output_ids")[first:]
        num_top = self._request.sampling.logprobs
        self._num_tokens += len(token_ids)
        wants_prompt = self._request.prompt_logprobs is not None
        return Delta(
            token_ids,
            () if num_top is None else _logprobs(about, "output", num_top)[first:],
            _reason(finish.text("type")),
            _stats(about),
            about.whole("cached_tokens"),
            self._prompt_logprobs(about) if wants_prompt else None,
            is_end=wants_prompt,
        )

    def _first_new(self, event: Fields, about: Fields) -> int:
        """Return where the new tokens of an event begin."""
        num_told, num_so_far = len(event.items("output_ids")), about.whole("completion_tokens")
        if num_told == num_so_far and num_told >= self._num_tokens:
            return self._num_tokens
        if num_so_far == self._num_tokens + num_told:
            return 0
        raise garbled("completion_tokens", num_so_far, "the number of tokens so far")

    def _prompt_logprobs(self, about: Fields) -> dict[int, TokenLogprob]:
        """Return the prompt's, by place; its first token has none."""
        rows = _logprobs(about, "input", self._request.prompt_logprobs or 0, num_without=1)
        return dict(enumerate(rows, start=1))


def _logprobs(
    about: Fields, side: str, num_top: int, num_without: int = 0
) -> tuple[TokenLogprob, ...]:
    """Return one side's log-probabilities: rows of logprob, token id and text."""
    own = about.items(f"{side}_token_logprobs")[num_without:]
    tops = about.items(f"{side}_top_logprobs")[num_without:] or [None] * len(own)
    if len(own) != len(tops):
        raise garbled(f"{side}_top_logprobs", len(tops), f"{len(own)} of them")
    return tuple(
        TokenLogprob(token_id, logprob, best(dict(map(_pair, top or ())), num_top))
        for (token_id, logprob), top in zip(map(_pair, own), tops, strict=True)
    )


def _is_raw(request: Request) -> bool:
    """Tell whether the sampler sees what the model said."""
    plain = SamplingParams(min_tokens=request.sampling.min_tokens)
    names = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")
    changes = [one for one in names if getattr(request.sampling, one) != getattr(plain, one)]
    is_cold = is_greedy(request) or request.sampling.temperature == 1
    return is_cold and not changes and request.grammar is None


def _pair(row: object) -> tuple[int, float]:
    if not isinstance(row, list) or len(row) < 2:
        raise garbled("logprobs", row, "a logprob and a token id")
    return whole(row[1], "token id"), number(row[0], "logprob")


def _reason(kind: str | None) -> FinishReason | None:
    if kind not in (None, FinishReason.STOP, FinishReason.LENGTH):
        raise garbled("finish_reason", kind, "stop or length")
    return None if kind is None else FinishReason(kind)


def _stats(about: Fields) -> DecodeStats | None:
    """Return the totals of the answer; what stood at which depth is not told."""
    rounds = about.whole("spec_verify_ct")
    drafted = about.whole("spec_num_proposed_drafts")
    accepted = about.whole("spec_num_correct_drafts")
    if not rounds or drafted is None or accepted is None:
        return None
    check_accepted(accepted, drafted)
    return DecodeStats(rounds, drafted, accepted, {ENGINE: DrafterCount(drafted, accepted)})
