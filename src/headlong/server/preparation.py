"""From a checked body to engine requests: what both kinds of completion do alike.

In:  a body, the prompts as token ids, the request's `mtp`.
Out: a `PreparedAnswer`: one engine request and one writer per choice. Runs in the text thread;
     nothing has been computed when it refuses.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from headlong.config import MAX_DRAFT_TOKENS, MtpMode, check_mtp
from headlong.decode.constraint import Grammar
from headlong.errors import RequestError, TextError
from headlong.generation import AnswerReader
from headlong.llm import GenerateOptions, make_request
from headlong.prompt import PreparedPrompt
from headlong.server.answer_stream import ChoiceRequest
from headlong.server.chat_protocol import ChatMessage
from headlong.server.choices import Writer
from headlong.server.protocol import DraftFields, GenerateBody
from headlong.server.refusal import bad_request
from headlong.server.service import Service
from headlong.text.chat_template import ChatOptions
from headlong.text.output_constraint import OutputConstraint, read_constraint
from headlong.text.rendered_chat import RenderedChat

MTP_HEADER = "X-Headlong-MTP"

_NUM_SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class PreparedAnswer:
    """An answer that is ready to be computed."""

    choices: Sequence[ChoiceRequest]
    writers: Sequence[Writer]
    """One per choice: all choices of the first prompt, then those of the second, …"""
    num_prompts: int
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """Makes the engine requests of one body."""

    service: Service
    body: GenerateBody
    mtp: MtpMode
    options: Mapping[str, Any]
    """What `make_request` gets besides what both kinds of body share."""
    grammar: Grammar | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the engine's request."""

    def choices_for(self, prompt: PreparedPrompt) -> list[ChoiceRequest]:
        """Return the choices of one prompt; the i-th has seed + i."""
        tokenizer = self.service.model.tokenizer
        seed = secrets.randbits(63) if self.body.seed is None else self.body.seed
        shared = {**self.body.sampling_options(), **self.options, "mtp": self.mtp}
        choices: list[ChoiceRequest] = []
        room = room_after(self.service, len(prompt.token_ids))
        shared["max_tokens"] = min(shared.get("max_tokens") or room, room)
        for i in range(self.body.num_choices):
            # As in the Python API: what is None was not given.
            options = cast(GenerateOptions, {**shared, "seed": (seed + i) % _NUM_SEEDS})
            request = make_request(prompt.token_ids, tokenizer.eos_ids, options)
            salt = self.body.cache_salt or ""
            if self.body.cache_prompt is False:
                salt = secrets.token_hex(16)
            request = replace(request, grammar=self.grammar, cache_salt=salt, **self.asked)
            reader = AnswerReader(
                tokenizer,
                request.stopping.stop,
                continues_text=prompt.continues_text,
                reasoning=prompt.reasoning,
            )
            choices.append(ChoiceRequest(request, reader))
        return choices


def choose_mtp(body: DraftFields, header: str | None, default: MtpMode) -> MtpMode:
    """Return the `mtp` that a body or the header names, or `default` where none does.

    Names that disagree are refused, since it cannot be known which was meant.
    """
    given: dict[str, MtpMode] = {}
    if body.mtp is not None:
        given["mtp"] = body.mtp
    if header is not None:
        given[MTP_HEADER] = _read_header(header)
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
        message = f"The header {MTP_HEADER} is {value[:80]!r}. It must be {allowed}."
        raise bad_request(message, MTP_HEADER, "invalid_value") from error


def check_body(service: Service, body: GenerateBody, num_prompts: int = 1) -> None:
    """Refuse what no schema can say: a foreign model, options that need others, unknown ids."""
    service.check_model(body.model)
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options was given without stream. Set stream to true.", "stream")
    num_answers = num_prompts * body.num_choices
    limits = service.model.engine.limits
    most = limits.max_running + limits.max_waiting
    if num_answers > most:  # a full queue would turn it away for ever
        message = (
            f"The request asks for {num_answers} answers at one time; this server holds {most}"
            " (max_running and max_waiting). Ask for fewer."
        )
        raise bad_request(message, "n" if num_prompts == 1 else "prompt", "invalid_value")
    vocab_size = service.model.engine.vocab_size
    unknown = [token_id for token_id in body.logit_bias or () if int(token_id) >= vocab_size]
    if unknown:
        allowed = f"Ids go from 0 to {vocab_size - 1}."
        message = f"logit_bias has the token id {unknown[0]}. {allowed}"
        raise bad_request(message, "logit_bias", "invalid_value")


def read_answer_constraint(body: GenerateBody, options: Mapping[str, Any]) -> OutputConstraint:
    """Return what an answer must look like; `options` are what the body's own kind adds."""
    try:
        guided = body.guided_format()
    except ValueError as error:
        raise bad_request(str(error), "guided_json", "invalid_value") from error
    if guided is None:
        return read_constraint(options)
    if options.get("response_format") is not None:
        message = "response_format was given together with a guide. Keep one."
        raise bad_request(message, "response_format", "invalid_value")
    return read_constraint({**options, "response_format": guided})


def render_messages(
    service: Service, messages: Sequence[ChatMessage], options: ChatOptions
) -> RenderedChat:
    """Return a conversation as the model's template writes it."""
    try:
        written = service.model.tokenizer.render_chat(
            [one.to_template() for one in messages], options
        )
    except TextError as error:
        raise bad_request(str(error), "messages", "invalid_value") from error
    check_text(service, written.text, "messages")
    return written


def prepare_messages(
    service: Service, messages: Sequence[ChatMessage], options: ChatOptions
) -> PreparedPrompt:
    """Return the same in token ids."""
    written = render_messages(service, messages, options)
    try:
        ids = tuple(service.model.tokenizer.encode_rendered(written))
    except TextError as error:
        raise bad_request(str(error), "messages", "invalid_value") from error
    is_continued = options.continue_final_message
    return PreparedPrompt(ids, is_continued, written.reasoning, written.warnings)


def check_text(service: Service, text: str, param: str) -> None:
    """Refuse a text that is surely too long before its tokens are counted, which takes long."""
    if len(text) <= service.max_prompt_tokens:
        return
    least = service.model.tokenizer.min_num_tokens(text)
    if least > service.max_prompt_tokens:
        message = (
            f"The prompt has {len(text)} characters, so at least {least} tokens; this server takes"
            f" at most {service.max_prompt_tokens}."
        )
        raise bad_request(message, param, "context_length_exceeded")


def check_prompt(service: Service, num_tokens: int, param: str) -> None:
    """Refuse a prompt that is empty or too long, with both numbers."""
    if num_tokens == 0:
        raise bad_request(f"{param} is empty. Give at least one token.", param, "invalid_value")
    if num_tokens >= service.max_sequence_tokens:
        is_memory = service.max_sequence_tokens < service.context_length
        holder = "the server's cache memory" if is_memory else "the model's context"
        message = (
            f"The prompt has {num_tokens} tokens; {holder} holds {service.max_sequence_tokens}, the"
            f" answer included. Shorten it to at most {service.max_prompt_tokens} tokens."
        )
        raise bad_request(message, param, "context_length_exceeded")
    if num_tokens > service.max_prompt_tokens:
        message = (
            f"The prompt has {num_tokens} tokens; this server takes at most"
            f" {service.max_prompt_tokens} (max_prompt_tokens)."
        )
        raise bad_request(message, param, "context_length_exceeded")


def room_after(service: Service, num_prompt_tokens: int) -> int:
    """Return how many tokens an answer may have at most."""
    return service.max_sequence_tokens - num_prompt_tokens


def room_warnings(service: Service, max_tokens: int | None, num_prompt_tokens: int) -> list[str]:
    """Say so when the room ends before `max_tokens` does."""
    room = room_after(service, num_prompt_tokens)
    if max_tokens is None or max_tokens <= room:
        return []
    return [f"max_tokens is {max_tokens}, but there is room for {room} more tokens."]
