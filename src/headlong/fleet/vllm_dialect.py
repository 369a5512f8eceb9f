"""vLLM: `/v1/completions` with token ids in and out.

Seen with 0.32. Grammars need an engine that was started with
`--structured-outputs-config.backend guidance`, draft statistics one with
`--per-request-spec-decode-metrics detailed`.
"""

from collections.abc import Sequence
from typing import Any

from headlong.decode.logprobs import TokenLogprob
from headlong.decode.request import Request
from headlong.decode.stats import DecodeStats
from headlong.fleet.answer_parts import ENGINE, best, check_accepted, finish_reason
from headlong.fleet.dialect import AnswerReader, Call, Delta, Feature, ReplicaLoad
from headlong.fleet.fields import Fields, garbled, number, read_event, whole
from headlong.fleet.http_dialect import HttpDialect
from headlong.fleet.needs import held_tokens, is_greedy, is_json_schema
from headlong.fleet.refusals import raise_failure
from headlong.fleet.scrape import Scrape

_TOKEN = "token_id:"


class VllmDialect(HttpDialect):
    """How vLLM is asked."""

    name = "vllm"
    features = frozenset(Feature) - {Feature.EMBEDDINGS}
    features_with_drafts = features - {Feature.MIN_P, Feature.LOGIT_BIAS}
    health_path = "/health"
    metrics_path: str | None = "/metrics"

    def write(self, request: Request, model: str) -> Call:
        """Return what to post; prompt logprobs come only in answers that do not stream."""
        stopping, sampling = request.stopping, request.sampling
        streams = request.prompt_logprobs is None
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(request.prompt_ids),
            "max_tokens": stopping.max_tokens,
            "stream": streams,
            "return_token_ids": True,
            "ignore_eos": stopping.ignore_eos,
            "stop_token_ids": [] if stopping.ignore_eos else sorted(request.eos_ids),
            "temperature": 0,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
        }
        if streams:
            body["stream_options"] = {"include_usage": True}
        else:
            body["prompt_logprobs"] = request.prompt_logprobs
        if not is_greedy(request):
            filters = {name: getattr(sampling, name) for name in ("top_k", "top_p", "min_p")}
            seed = sampling.seed - (1 << 64 if sampling.seed >> 63 else 0)  # it counts from -2**63
            body |= {"temperature": sampling.temperature, "seed": seed, **filters}
        if any(sampling.logit_bias.values()):
            body["logit_bias"] = {str(one): bias for one, bias in sampling.logit_bias.items()}
        if held_tokens(request):
            body["min_tokens"] = held_tokens(request)
        if sampling.logprobs is not None:
            body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
        if request.grammar is not None:
            kind = "json" if is_json_schema(request) else "grammar"
            body["structured_outputs"] = {kind: request.grammar.source}
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        return Call("/v1/completions", body)

    def reader(self, request: Request) -> AnswerReader:
        """Return the reader of the answer to `request`."""
        return VllmReader(request)

    def tokenize(self, text: str, model: str) -> Call | None:
        """Return what asks for the tokens of a text."""
        return Call("/tokenize", {"model": model, "prompt": text})

    def read_load(self, metrics: str) -> ReplicaLoad:
        """Return the load that a scrape tells."""
        seen = Scrape(metrics)
        return ReplicaLoad(
            seen.total("vllm:num_requests_running"),
            seen.total("vllm:num_requests_waiting"),
            seen.highest("vllm:kv_cache_usage_perc"),
            seen.total("vllm:spec_decode_num_draft_tokens_total"),
            seen.total("vllm:spec_decode_num_accepted_tokens_total"),
        )


class VllmReader:
    """Reads one answer, streamed or whole."""

    def __init__(self, request: Request) -> None:
        self._num_top = request.sampling.logprobs
        self._num_prompt_top = request.prompt_logprobs
        self._num_tokens = 0

    def read(self, data: str) -> Delta:
        """Return what an event brings."""
        if data == "[DONE]":
            return Delta(is_end=True)
        event = read_event(data)
        raise_failure(event)
        choices = event.parts("choices")
        usage = event.part("usage").part("prompt_tokens_details")
        cached = usage.whole("cached_tokens")
        if not choices:
            return Delta(stats=self._stats(event), num_cached_tokens=cached)
        if len(choices) > 1 or choices[0].whole("index") != 0:
            raise garbled("choices", [one.whole("index") for one in choices], "one, of index 0")
        choice = choices[0]
        token_ids = choice.wholes("token_ids")
        self._num_tokens += len(token_ids)
        return Delta(
            token_ids,
            () if self._num_top is None else self._logprobs(choice, token_ids, self._num_top),
            finish_reason(choice.text("finish_reason")),
            self._stats(event),
            cached,
            None if self._num_prompt_top is None else self._prompt_logprobs(choice),
            is_end=self._num_prompt_top is not None,
        )

    def _stats(self, event: Fields) -> DecodeStats | None:
        """Return what was drafted, where it is told.

        Rounds without drafts are not told: they are what is left of the tokens.
        """
        told = event.part("metrics").part("speculative_decoding")
        if "num_spec_steps" not in told:
            return None
        drafted, accepted = told.wholes("per_step_drafted"), told.wholes("per_step_accepted")
        if len(drafted) != len(accepted):
            raise garbled("per_step_accepted", accepted, "as long as per_step_drafted")
        stats = DecodeStats()
        for num_drafted, num_accepted in zip(drafted, accepted, strict=True):
            check_accepted(num_accepted, num_drafted)
            stats.observe_round([ENGINE] * num_drafted, num_accepted)
        if not drafted:  # the engine tells totals only
            stats.rounds = told.whole("num_spec_steps") or 0
            stats.num_drafted = told.whole("num_draft_tokens") or 0
            stats.num_accepted = told.whole("num_accepted_draft_tokens") or 0
            check_accepted(stats.num_accepted, stats.num_drafted)
        for _ in range(self._num_tokens - 1 - stats.rounds - stats.num_accepted):
            stats.observe_round([], 0)
        return stats

    def _logprobs(
        self, choice: Fields, token_ids: Sequence[int], num_top: int
    ) -> tuple[TokenLogprob, ...]:
        told = choice.part("logprobs")
        own, tops = told.items("token_logprobs"), told.items("top_logprobs")
        if not len(own) == len(tops) == len(token_ids):
            raise garbled("token_logprobs", own, f"one for each of {len(token_ids)} tokens")
        return tuple(
            TokenLogprob(
                token_id,
                number(logprob, "token_logprobs"),
                best({_token_id(name): value for name, value in top.items()}, num_top),
            )
            for token_id, logprob, top in zip(
                token_ids, own, [Fields(one, "top_logprobs").own for one in tops], strict=True
            )
        )

    def _prompt_logprobs(self, choice: Fields) -> dict[int, TokenLogprob]:
        prompt_ids = choice.wholes("prompt_token_ids")
        rows: dict[int, TokenLogprob] = {}
        for place, told in enumerate(choice.items("prompt_logprobs")):
            if told is None:
                continue
            row = Fields(told, "prompt_logprobs")
            values = {_token_id(name): row.part(name).number("logprob") for name in told}
            token_id = prompt_ids[place] if place < len(prompt_ids) else -1
            if token_id not in values:
                raise garbled("prompt_logprobs", told, f"also of token {token_id}")
            tops = best(values, self._num_prompt_top or 0)
            rows[place] = TokenLogprob(token_id, values[token_id], tops)
        return rows


def _token_id(name: str) -> int:
    digits = name.removeprefix(_TOKEN)
    return whole(int(digits) if digits.isascii() and digits.isdigit() else None, "token id")
