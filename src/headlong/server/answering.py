"""Give one answer over HTTP: start it, watch for the client leaving, stream it or send it whole.

In:  a prepared answer and the call it belongs to.
Out: an ASGI response. Everything from the start in the engine to the record at the end happens in
     one place, so that whatever ends it (the answer, an error, the client, the clock) frees the
     engine and leaves a record.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headlong.config import MtpMode
from headlong.errors import EngineError, HeadlongError
from headlong.generation import Chunk
from headlong.server.answer_format import AnswerFormat, Ending, to_json
from headlong.server.answer_stream import Answer, Arrival
from headlong.server.call import Call, CallKind
from headlong.server.error_formats import end_stream
from headlong.server.openai_format import OpenAIFormat
from headlong.server.preparation import MTP_HEADER, PreparedAnswer, choose_mtp
from headlong.server.protocol import GenerateBody
from headlong.server.refusal import Refusal, refusal_for, send_refusal, send_response
from headlong.server.service import Service, service_of

_STREAM_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies would hold events back
]

BodyT = TypeVar("BodyT", bound=GenerateBody)

_log = logging.getLogger("headlong.server.answering")

FormatMaker: TypeAlias = Callable[[Call, PreparedAnswer], AnswerFormat]


async def answer_with(
    prepare: Callable[[Service, BodyT, MtpMode], PreparedAnswer],
    kind: CallKind,
    body: BodyT,
    request: Request,
    make_format: FormatMaker | None = None,
) -> Response:
    """Return the answer to a body, which `prepare` turns into engine requests.

    Another protocol than OpenAI's completions brings a format of its own.
    """
    service = service_of(request)
    mtp = choose_mtp(body, request.headers.get(MTP_HEADER), service.default_mtp(request))
    call = Call(kind, request, service, mtp)
    prepared = await service.in_text_thread(partial(prepare, service, body, mtp))
    if make_format is None:
        answer_format: AnswerFormat = OpenAIFormat(call, wants_usage=body.wants_usage)
    else:
        answer_format = make_format(call, prepared)
    return AnswerResponse(call, prepared, answer_format, is_stream=bool(body.stream))


class AnswerResponse(Response):
    """The answer to one call."""

    def __init__(
        self, call: Call, prepared: PreparedAnswer, answer_format: AnswerFormat, *, is_stream: bool
    ) -> None:
        super().__init__()
        self._call = call
        self._prepared = prepared
        self._format = answer_format
        self._is_stream = is_stream
        self._status = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the whole exchange."""
        service = self._call.service
        try:
            answer = await service.worker.submit(self._prepared.choices)
        except HeadlongError as error:
            refusal = self._refuse(error)
            if refusal.retry_after_s is not None:  # nothing is wrong with it: no room, or no time
                service.metrics.refused(refusal.code or "limit")
            await send_refusal(send, refusal)
            return
        service.metrics.request_received(self._call.kind.name)
        watcher = asyncio.create_task(_cancel_when_gone(receive, answer))
        finish_reason = "error"
        try:
            give = self._stream if self._is_stream else self._send_whole
            await give(answer, send)
            finish_reason = _reason(answer, self._prepared)
        except HeadlongError as error:
            await send_refusal(send, self._refuse(error))
        except asyncio.CancelledError:
            finish_reason, self._status = "timeout", 504  # only the clock cancels this
            raise
        finally:
            watcher.cancel()
            answer.cancel()
            await answer.ended()
            self._call.end(
                answer,
                self._prepared,
                finish_reason,
                status=self._status,
                is_stream=self._is_stream,
            )

    def _refuse(self, error: HeadlongError) -> Refusal:
        """Return the error for the client; internal faults are logged in full."""
        refusal = refusal_for(error)
        self._status = refusal.status
        if refusal.status == 500 and isinstance(error, EngineError) and error.__cause__ is None:
            # Another process is at fault: a traceback through this one says nothing.
            _log.error("Request %s failed. %s", self._call.request_id, error)
        elif refusal.status == 500:
            _log.error("Request %s failed.", self._call.request_id, exc_info=error)
        return refusal

    async def _send_whole(self, answer: Answer, send: Send) -> None:
        collected: list[list[Chunk]] = [[] for _ in answer.streams]
        is_last = False
        while not is_last:
            arrival = await answer.next_arrival()
            is_last = arrival.is_last
            self._call.count_chunks(arrival.chunks)
            for chunks, more in zip(collected, arrival.chunks, strict=True):
                chunks += more
        if answer.was_cancelled:
            return
        writers = zip(self._prepared.writers, collected, answer.reports, strict=True)
        choices = [writer.whole(chunks, report) for writer, chunks, report in writers]
        body = to_json(self._format.whole(choices, self._ending(answer)))
        await send_response(send, Response(body, media_type="application/json"))

    async def _stream(self, answer: Answer, send: Send) -> None:
        """Send events; headers wait for the first token, so that a failed prompt has its status."""
        arrival = await answer.next_arrival()
        if answer.was_cancelled:
            return
        headers = [(b"content-type", self._format.media_type.encode()), *_STREAM_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        opening = [writer.opening() for writer in self._prepared.writers]
        await _send_part(send, self._format.opening([one for one in opening if one is not None]))
        try:
            while not arrival.is_last:
                await _send_part(send, self._format.pieces(self._pieces(arrival)))
                arrival = await answer.next_arrival()
        except HeadlongError as error:
            await end_stream(send, self._call.path, self._refuse(error))
            return
        if not answer.was_cancelled:
            body = self._format.last(self._pieces(arrival), self._ending(answer))
            await send({"type": "http.response.body", "body": body})

    def _ending(self, answer: Answer) -> Ending:
        usage = self._call.usage(answer, self._prepared)
        return Ending(usage, self._call.telemetry(answer, self._prepared.warnings))

    def _pieces(self, arrival: Arrival) -> list[dict[str, Any]]:
        self._call.count_chunks(arrival.chunks)
        writers = zip(self._prepared.writers, arrival.chunks, strict=True)
        return [piece for writer, chunks in writers if chunks for piece in writer.pieces(chunks)]


async def _send_part(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _cancel_when_gone(receive: Receive, answer: Answer) -> None:
    """End an answer when its client leaves; the server frees it within a round."""
    while (await receive())["type"] != "http.disconnect":
        pass
    answer.cancel()


def _reason(answer: Answer, prepared: PreparedAnswer) -> str:
    """Return why an ended answer ended, as its record says."""
    if answer.error is not None:
        return "error"
    if answer.was_cancelled:
        return "cancelled"
    reasons = [writer.finish_reason for writer in prepared.writers]
    return next((reason for reason in reasons if reason), "stop")
