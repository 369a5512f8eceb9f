"""llama.cpp's server: `/completion` with token ids in and out.

Seen with b11434. Its streams leave out the ids of tokens that end within a character; their number
and text are told, so tokens that spell the same take their places.
"""

from typing import Any

from headlong.decode.logprobs import TokenLogprob
from headlong.decode.request import Request
from headlong.decode.stats import DecodeStats, DrafterCount
from headlong.engine.request import FinishReason
from headlong.fleet.answer_parts import ENGINE, best, check_accepted
from headlong.fleet.dialect import AnswerReader, Call, Delta, Feature, ReplicaLoad
from headlong.fleet.fields import Fields, garbled, read_event
from headlong.fleet.http_dialect import HttpDialect
from headlong.fleet.needs import is_greedy, plain_schema
from headlong.fleet.refusals import raise_failure
from headlong.fleet.scrape import Scrape
from headlong.fleet.spelling import Speller
from headlong.text.tokenizer import Tokenizer

_SEEDS = 2**32 - 1
"""How many seeds it has; one more means a random one."""

_FINISHES = {"eos": FinishReason.STOP, "limit": FinishReason.LENGTH}
_ORDER = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""Of what is done to the logits: as here, not as its default."""


class LlamaCppDialect(HttpDialect):
    """How llama.cpp's server is asked."""

    name = "llama.cpp"
    features = frozenset(
        {
            Feature.TOKEN_IDS,
            Feature.LOGPROBS,
            Feature.JSON_SCHEMA,
            Feature.SEED,
            Feature.TOP_K,
            Feature.MIN_P,
            Feature.LOGIT_BIAS,
            Feature.REPETITION_PENALTY,
            Feature.DRAFT_STATS,
        }
    )
    features_with_drafts = features - {Feature.LOGPROBS}
    health_path = "/health"
    metrics_path: str | None = "/metrics"
    keeps_connections = False  # it promises to, and closes them behind every stream

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._speller = Speller(tokenizer)

    def write(self, request: Request, model: str) -> Call:
        """Return what to post; with logprobs it does not stream, so that no token is left out."""
        sampling, num_tokens = request.sampling, request.stopping.max_tokens
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(request.prompt_ids),
            "n_predict": num_tokens,
            "stream": sampling.logprobs is None,
            "return_tokens": True,
            "response_fields": ["tokens", "tokens_predicted", "stop", "stop_type", "timings"],
            "samplers": _ORDER,
            "temperature": 0,
            "top_k": 0,
            "top_p": 1,
            "min_p": 0,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": len(request.prompt_ids) + num_tokens,
        }
        if not is_greedy(request):
            filters = {name: getattr(sampling, name) for name in ("top_k", "top_p", "min_p")}
            body |= {"temperature": sampling.temperature, "seed": sampling.seed % _SEEDS, **filters}
        if any(sampling.logit_bias.values()):
            body["logit_bias"] = [[one, bias] for one, bias in sampling.logit_bias.items()]
        if sampling.logprobs is not None:
            # The chosen token is told in any case; 0 would tell nothing.
            body["n_probs"] = max(1, sampling.logprobs)
            body["response_fields"].append("completion_probabilities")
        schema = plain_schema(request)
        if schema is not None:
            body["json_schema"] = schema
        return Call("/completion", body)

    def reader(self, request: Request) -> AnswerReader:
        """Return the reader of the answer to `request`."""
        return LlamaCppReader(request, self._speller)

    def tokenize(self, text: str, model: str) -> Call | None:
        """Return what asks for the tokens of a text."""
        return Call("/tokenize", {"content": text})

    def read_load(self, metrics: str) -> ReplicaLoad:
        """Return the load that a scrape tells."""
        seen = Scrape(metrics)
        return ReplicaLoad(
            seen.total("llamacpp:requests_processing"),
            seen.total("llamacpp:requests_deferred"),
            None,
            seen.total("llamacpp:spec_decode_num_draft_tokens_total"),
            seen.total("llamacpp:spec_decode_num_accepted_tokens_total"),
        )


class LlamaCppReader:
    """Reads one answer, streamed or whole."""

    def __init__(self, request: Request, speller: Speller) -> None:
        self._request = request
        self._speller = speller
        self._num_tokens = 0
        self._held: tuple[int, ...] = ()
        """A token without text: maybe one of those that end a text, which are all alike here."""

    def read(self, data: str) -> Delta:
        """Return what an event brings."""
        if data == "[DONE]":
            return Delta()
        event = read_event(data)
        raise_failure(event)
        if "stop" not in event:
            raise garbled("event", data, "one with the field stop")
        token_ids = (*self._held, *self._tokens(event))
        self._held = ()
        if not event.flag("stop"):
            if not event.text("content") and token_ids[-1:] not in [(i,) for i in self._ends]:
                token_ids, self._held = token_ids[:-1], token_ids[-1:]
            return Delta(token_ids)
        reason = _FINISHES.get(event.text("stop_type") or "")
        if reason is None:
            raise garbled("stop_type", event.text("stop_type"), "eos or limit")
        if reason is FinishReason.STOP and token_ids and self._ends:
            token_ids = (*token_ids[:-1], *self._ending(token_ids[-1]))
        num_top = self._request.sampling.logprobs
        timings = event.part("timings")
        return Delta(
            token_ids,
            () if num_top is None else self._logprobs(event, token_ids, num_top),
            reason,
            self._stats(timings),
            timings.whole("cache_n"),
            is_end=True,
        )

    @property
    def _ends(self) -> frozenset[int]:
        return self._request.eos_ids

    def _ending(self, token_id: int) -> tuple[int, ...]:
        """Return the token that ends a text: it ends at more of them than the model names."""
        return (token_id,) if token_id in self._ends else (min(self._ends),)

    def _tokens(self, event: Fields) -> tuple[int, ...]:
        """Return an event's tokens, with those before it whose ids were left out."""
        told, text = event.wholes("tokens"), event.text("content") or ""
        num_left_out = (event.whole("tokens_predicted") or 0) - self._num_tokens - len(told)
        self._num_tokens += max(0, num_left_out) + len(told)
        if num_left_out <= 0:
            return told
        if not told:  # the answer ends within a character
            spelled = self._speller.spell_cut(num_left_out)
        else:
            spelled = self._speller.spell_in(text, num_left_out + len(told))
        if spelled is None:
            raise garbled("content", text, f"the text of {num_left_out + len(told)} tokens")
        return spelled

    def _stats(self, timings: Fields) -> DecodeStats | None:
        """Return the totals of the answer; what stood at which depth is not told."""
        num_drafted, num_accepted = timings.whole("draft_n"), timings.whole("draft_n_accepted")
        if not num_drafted or num_accepted is None:
            return None
        check_accepted(num_accepted, num_drafted)
        rounds = max(1, self._num_tokens - 1 - num_accepted)
        drafters = {ENGINE: DrafterCount(num_drafted, num_accepted)}
        return DecodeStats(rounds, num_drafted, num_accepted, drafters)

    def _logprobs(
        self, event: Fields, token_ids: tuple[int, ...], num_top: int
    ) -> tuple[TokenLogprob, ...]:
        told = event.parts("completion_probabilities")
        if len(told) != len(token_ids):
            raise garbled("completion_probabilities", len(told), f"{len(token_ids)} of them")
        return tuple(
            TokenLogprob(
                token_id,
                one.number("logprob"),
                best(
                    {
                        top.whole("id") or 0: top.number("logprob")
                        for top in one.parts("top_logprobs")
                    },
                    num_top,
                ),
            )
            for token_id, one in zip(token_ids, told, strict=True)
        )
