"""How scripted engines write their answers: vLLM's and llama.cpp's bodies and events.

Shapes were copied from answers of vLLM 0.32 and llama.cpp b11434. What a fault changes in the words
themselves is done here; what it does to the connection is done in `http_engine.py`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripted_model import ScriptedModel

Body = Mapping[str, Any]


@dataclass
class Said:
    """What an answer consists of so far."""

    token_ids: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    """For each round how many tokens were drafted."""
    accepted: list[int] = field(default_factory=list)
    finish: str | None = None

    @property
    def metrics(self) -> dict[str, Any]:
        """Return vLLM's statistics of one answer."""
        most = max(self.drafted, default=0)
        return {
            "num_spec_steps": len(self.drafted),
            "num_accepted_draft_tokens": sum(self.accepted),
            "num_draft_tokens": sum(self.drafted),
            "num_spec_tokens": most,
            "acceptance_histogram": [self.accepted.count(num) for num in range(most + 1)],
            "per_step_accepted": list(self.accepted) or None,
            "per_step_drafted": list(self.drafted) or None,
        }


class VllmWire:
    """`/v1/completions` with token ids."""

    path = "/v1/completions"
    prompt_key = "prompt"
    metrics = (
        'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
        'vllm:num_requests_waiting{{engine="0",model_name="m"}} 0.0\n'
        'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25\n'
        'vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafted}\n'
        'vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}\n'
    )

    def max_tokens(self, body: Body) -> int:
        """Return how many tokens are asked for at most."""
        return int(body.get("max_tokens", 16))

    def ends(self, body: Body, eos_id: int) -> set[int]:
        """Return the tokens that end the answer."""
        own = set() if body.get("ignore_eos") else {eos_id}
        return own | set(body.get("stop_token_ids") or ())

    def token(
        self, model: ScriptedModel, body: Body, said: Sequence[tuple[int, int]], finish: str | None
    ) -> str:
        """Return the event of tokens with the states before them."""
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(f"<{token_id}>" for token_id, _ in said),
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": [token_id for token_id, _ in said],
        }
        num_top = body.get("logprobs")
        if num_top is not None:
            choice["logprobs"] = {
                "tokens": [f"token_id:{token_id}" for token_id, _ in said],
                "token_logprobs": [model.logprob(state, token_id) for token_id, state in said],
                "top_logprobs": [
                    {f"token_id:{i}": p for i, p in model.top(state, token_id, num_top).items()}
                    for token_id, state in said
                ],
            }
        return json.dumps({"object": "text_completion", "choices": [choice]})

    def ending(self, body: Body, said: Said, speculates: bool) -> Iterator[str]:
        """Yield the events behind the last token."""
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(said.token_ids)}
            last: dict[str, Any] = {"choices": [], "usage": usage}
            if speculates:
                last["metrics"] = {"speculative_decoding": said.metrics}
            yield json.dumps(last)
        yield "[DONE]"

    def whole(
        self, model: ScriptedModel, body: Body, said: Sequence[tuple[int, int]], answer: Said
    ) -> str:
        """Return the answer to a request that does not stream."""
        document = json.loads(self.token(model, body, said, answer.finish))
        if body.get("prompt_logprobs") is not None:
            prompt, rows = body["prompt"], [None]
            for place in range(1, len(prompt)):
                state = model.state(prompt[:place])
                top = model.top(state, prompt[place], body["prompt_logprobs"])
                rows.append({str(i): {"logprob": p, "rank": 1} for i, p in top.items()})  # type: ignore[arg-type] # the first has none
            document["choices"][0] |= {"prompt_logprobs": rows, "prompt_token_ids": prompt}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(answer.token_ids)}
        return json.dumps({**document, "usage": usage})


class LlamaWire:
    """llama.cpp's `/completion`."""

    path = "/completion"
    prompt_key = "prompt"
    metrics = (
        "llamacpp:requests_processing {running}\nllamacpp:requests_deferred 0\n"
        "# drafted {drafted}, accepted {accepted}\n"
    )

    def max_tokens(self, body: Body) -> int:
        """Return how many tokens are asked for at most."""
        return int(body.get("n_predict", 16))

    def ends(self, body: Body, eos_id: int) -> set[int]:
        """Return the tokens that end the answer."""
        held = {one[0] for one in body.get("logit_bias") or () if one[1] is False}
        return {eos_id} - held

    def token(
        self, model: ScriptedModel, body: Body, said: Sequence[tuple[int, int]], finish: str | None
    ) -> str:
        """Return the event of tokens with the states before them."""
        event: dict[str, Any] = {
            "index": 0,
            "content": "".join(f"<{token_id}>" for token_id, _ in said),
            "tokens": [token_id for token_id, _ in said],
            "stop": False,
            "tokens_evaluated": len(body["prompt"]),
        }
        if body.get("n_probs"):
            event["completion_probabilities"] = [
                {
                    "id": token_id,
                    "logprob": model.logprob(state, token_id),
                    "top_logprobs": [
                        {"id": i, "logprob": p}
                        for i, p in model.top(state, token_id, body["n_probs"]).items()
                    ],
                }
                for token_id, state in said
            ]
        return json.dumps(event)

    def ending(self, body: Body, said: Said, speculates: bool) -> Iterator[str]:
        """Yield the event behind the last token."""
        timings = {"cache_n": 0, "prompt_n": len(body["prompt"])}
        if speculates:
            timings |= {"draft_n": sum(said.drafted), "draft_n_accepted": sum(said.accepted)}
        yield json.dumps(
            {
                "index": 0,
                "content": "",
                "tokens": [],
                "stop": True,
                "stop_type": "eos" if said.finish == "stop" else "limit",
                "tokens_predicted": len(said.token_ids),
                "timings": timings,
            }
        )

    def whole(
        self, model: ScriptedModel, body: Body, said: Sequence[tuple[int, int]], answer: Said
    ) -> str:
        """Return the answer to a request that does not stream."""
        document = json.loads(self.token(model, body, said, answer.finish))
        ending = json.loads(next(self.ending(body, answer, False)))
        return json.dumps({**ending, **document, "stop": True})


WIRES: Mapping[str, VllmWire | LlamaWire] = {"vllm": VllmWire(), "llama.cpp": LlamaWire()}
