"""One call of the API in numbers: who asked, when tokens came, how it ended.

In:  events of an answer as it is given.
Out: metrics while it runs; at its end a `FinishedRequest`, and what the answer says of itself
     (usage, `mtp`, `metrics`, `timings`).
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from headlong.config import MtpMode
from headlong.generation import Chunk
from headlong.provenance import own_version
from headlong.server import telemetry
from headlong.server.answer_stream import Answer
from headlong.server.http_middleware import route_path
from headlong.server.live import FinishedRequest
from headlong.server.preparation import PreparedAnswer
from headlong.server.service import Service, client_of


@dataclass(frozen=True, slots=True)
class CallKind:
    """What differs between the two kinds of completion in names alone."""

    name: str
    """In the metrics."""
    route: str
    id_prefix: str
    whole_object: str
    chunk_object: str


CHAT = CallKind(
    "chat", "/v1/chat/completions", "chatcmpl", "chat.completion", "chat.completion.chunk"
)
COMPLETION = CallKind("completion", "/v1/completions", "cmpl", "text_completion", "text_completion")

_FINGERPRINT = f"headlong-{own_version()}"


class Call:
    """One call, from its arrival to its record."""

    def __init__(self, kind: CallKind, request: Request, service: Service, mtp: MtpMode) -> None:
        self.kind = kind
        self.mtp = mtp
        self.service = service
        self.id = f"{kind.id_prefix}-{secrets.token_hex(12)}"
        self._request = request
        self._created_s = time.time()
        self._began_s = time.perf_counter()
        self._ttft_s: float | None = None
        self._seen_s: dict[int, float] = {}
        """When each choice last had a token."""
        self._num_tokens = 0
        self._num_reasoning = 0

    @property
    def path(self) -> str:
        """What was asked for."""
        return route_path(self._request.scope)

    @property
    def request_id(self) -> str:
        """What the log calls the HTTP request."""
        return str(self._request.state.request_id)

    def head(self, object_name: str) -> dict[str, Any]:
        """Return what every body and chunk of the answer begins with."""
        return {
            "id": self.id,
            "object": object_name,
            "created": int(self._created_s),
            "model": self.service.model_id,
            "system_fingerprint": _FINGERPRINT,
        }

    def count_chunks(self, arrived: Sequence[Sequence[Chunk]]) -> None:
        """Count tokens that have arrived, choice by choice."""
        now_s, metrics = time.perf_counter(), self.service.metrics
        for choice, chunks in enumerate(arrived):
            num_new = len(chunks)
            if not num_new:
                continue
            self._num_tokens += num_new
            self._num_reasoning += sum(chunk.is_reasoning for chunk in chunks)
            before_s = self._seen_s.get(choice)
            self._seen_s[choice] = now_s
            self.service.live.count_chunks(chunks, is_first=before_s is None)
            if before_s is None:
                before_s, num_new = now_s, num_new - 1
                self._ttft_s = self._ttft_s or now_s - self._began_s
                metrics.first_token(now_s - self._began_s)
            if num_new:
                metrics.tokens(num_new, now_s - before_s)

    def usage(self, answer: Answer, prepared: PreparedAnswer) -> telemetry.Usage:
        """Return OpenAI's `usage`; every prompt counts once, however many choices it got."""
        firsts = answer.reports[:: len(prepared.choices) // prepared.num_prompts]
        return telemetry.count_usage(firsts, self._num_tokens, self._num_reasoning)

    def telemetry(self, answer: Answer, warnings: Sequence[str]) -> dict[str, Any]:
        """Return how an ended answer was made, in three dialects, and what there is to warn of."""
        total = telemetry.add_up(answer.reports)
        cut = [report.warning for report in answer.reports if report.warning is not None]
        return {
            "mtp": telemetry.mtp_report(total, self.mtp),
            "metrics": telemetry.speculative_metrics(total, self.mtp),
            "timings": telemetry.llama_timings(total),
            **({"warnings": [*warnings, *cut]} if warnings or cut else {}),
        }

    def end(
        self,
        answer: Answer,
        prepared: PreparedAnswer,
        finish_reason: str,
        *,
        status: int,
        is_stream: bool,
    ) -> None:
        """Record an ended answer.

        The reason is what clients are told, or "error", "timeout", "cancelled"; the status is that
        of HTTP, or what it would have been where a stream had begun.
        """
        usage, total = self.usage(answer, prepared), telemetry.add_up(answer.reports)
        client = client_of(self._request)
        record = FinishedRequest(
            id=self.id,
            created_s=self._created_s,
            route=self.kind.route,
            mtp=self.mtp,
            num_prompt_tokens=usage.prompt_tokens,
            num_completion_tokens=self._num_tokens,
            finish_reason=finish_reason,
            total_s=time.perf_counter() - self._began_s,
            num_cached_tokens=usage.prompt_tokens_details.cached_tokens,
            status=status,
            ttft_s=self._ttft_s,
            tokens_per_second=total.timings.tokens_per_second,
            is_stream=is_stream,
            client=client.name if client is not None else None,
            report=telemetry.mtp_report(total, self.mtp),
            stats=total.stats,
        )
        self._request.state.record = record
        self.service.metrics.request_finished(record)
        self.service.live.request_finished(record)
