"""Health: whether replicas can be trusted with requests, from how these end and from asking.

In:  how requests went, and each replica's own answers to `GET` health and models.
Out: `Replica.state` and `Replica.problem`. A replica that fails is suspect, then down: it is asked
     at growing intervals, and one bad request suffices to put it down again. One whose tokens are
     not the front's, or that comes back with another model than before, is kept out.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from headlong.errors import EngineError, HeadlongError
from headlong.fleet.exchange import key_header
from headlong.fleet.fields import read_event
from headlong.fleet.replica import Replica, ReplicaState
from headlong.text.tokenizer import Tokenizer

CHECK_S = 2.0
"""Between two calls to a replica that is up."""

ANSWER_S = 5.0
"""How long it may take to answer one."""

MAX_FAILURES = 3
"""In a row; then it is down."""

FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 15.0

TOKEN_TEXT = "The quick brown fox jumps over the lazy dog, then sleeps until noon."
"""An engine tells its tokens; with the front's tokenizer they must be this text again."""

_log = logging.getLogger("headlong.fleet")


@dataclass(slots=True)
class _Record:
    """What the health of one replica is judged by."""

    num_failures: int = 0
    """In a row."""
    backoff_s: float = FIRST_BACKOFF_S
    model: tuple[str, int | None] | None = None
    """The first model it had that is the front's."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is to be asked at once."""


class Health:
    """Watches the replicas of one fleet."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        http: httpx.AsyncClient,
        tokenizer: Tokenizer,
        model: str | None = None,
    ) -> None:
        """Watch `replicas`, whose tokens must be those of `tokenizer`.

        `model` is what engines call theirs, needed where one has several.
        """
        self._http = http
        self._tokenizer = tokenizer
        self._model = model
        self._records = {one: _Record() for one in replicas}

    def observe_success(self, replica: Replica) -> None:
        """Note that a request ended well."""
        record = self._records[replica]
        record.num_failures, record.backoff_s = 0, FIRST_BACKOFF_S
        replica.num_answered += 1
        if replica.state is ReplicaState.SUSPECT:
            self._move(replica, ReplicaState.UP)

    def observe_failure(self, replica: Replica, error: HeadlongError) -> None:
        """Note that a request or a call failed through no fault of its own."""
        record = self._records[replica]
        record.num_failures += 1
        replica.num_failed += 1
        if replica.state is ReplicaState.DOWN:
            return
        is_down = record.num_failures >= MAX_FAILURES
        self._move(replica, ReplicaState.DOWN if is_down else ReplicaState.SUSPECT, error.problem)
        record.news.set()

    async def watch(self, replica: Replica) -> None:
        """Ask a replica again and again until cancelled."""
        record = self._records[replica]
        while True:
            await self.check(replica)
            is_well = replica.state is ReplicaState.UP
            record.news.clear()
            if replica.state is ReplicaState.DOWN:
                await asyncio.sleep(record.backoff_s)
                record.backoff_s = min(2 * record.backoff_s, MAX_BACKOFF_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S if is_well else FIRST_BACKOFF_S):
                    await record.news.wait()
                await asyncio.sleep(FIRST_BACKOFF_S)

    async def check(self, replica: Replica) -> None:
        """Ask a replica how it is and which model it has."""
        record, before = self._records[replica], replica.state
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._get(replica, replica.dialect.health_path)
                model = self._read_models(replica, await self._get(replica, "/v1/models"))
            self._check_model(replica, record, model)
            if before in (ReplicaState.STARTING, ReplicaState.DOWN):
                async with asyncio.timeout(ANSWER_S):
                    await self._check_tokens(replica, model[0])
        except (HeadlongError, httpx.HTTPError, TimeoutError) as error:
            self._note_silence(replica, record, error)
            return
        record.model = model
        replica.model, replica.max_tokens = model
        await self._read_load(replica)
        if replica.state is not before:
            return  # requests have shown more meanwhile
        if before in (ReplicaState.STARTING, ReplicaState.DOWN):
            record.num_failures = MAX_FAILURES - 1 if before is ReplicaState.DOWN else 0
            replica.verdict = None  # whoever comes back may be another
        if before is not ReplicaState.UP:
            self._move(replica, ReplicaState.UP)

    async def _read_load(self, replica: Replica) -> None:
        """Ask what the replica says of its own load; nobody is worse for not saying it."""
        path = replica.dialect.metrics_path
        if path is None:
            return
        with contextlib.suppress(HeadlongError, httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                answer = await self._get(replica, path)
            replica.load = replica.dialect.read_load(answer.text)

    def _note_silence(self, replica: Replica, record: _Record, error: Exception) -> None:
        if isinstance(error, _WrongModelError):
            if replica.state is not ReplicaState.DOWN or replica.problem != error.problem:
                _log.error("%s", error)
            replica.state, replica.problem = ReplicaState.DOWN, error.problem
            return
        words = error.problem if isinstance(error, HeadlongError) else _words(error)
        problem = f"The replica {replica.name} does not answer: {words}"
        if replica.state is ReplicaState.STARTING:
            replica.problem = problem
            return
        self.observe_failure(replica, EngineError(problem))

    async def _get(self, replica: Replica, path: str) -> httpx.Response:
        answer = await self._http.get(f"{replica.url}{path}", headers=key_header(replica))
        if answer.status_code != httpx.codes.OK:
            problem = f"GET {path} was answered with HTTP {answer.status_code}."
            wants_key = answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
            raise EngineError(
                f"{problem} Is its key in --engine-key-file?" if wants_key else problem
            )
        return answer

    def _read_models(self, replica: Replica, answer: httpx.Response) -> tuple[str, int | None]:
        """Return the name and the context of the model that an engine serves."""
        cards = {card.text("id") or "": card for card in read_event(answer.text).parts("data")}
        wanted = [name for name in cards if self._model in (None, name)]
        if len(wanted) != 1:
            names = ", ".join(cards) or "none"
            problem = f"The replica {replica.name} serves several models: {names}."
            if not wanted:
                asked = "no model" if self._model is None else f"no model {self._model!r}"
                problem = f"The replica {replica.name} has {asked}; it has {names}."
            raise _WrongModelError(problem, "Name one of them with --engine-model.")
        (name,) = wanted
        card = cards[name]
        # llama.cpp tells the context of one of its slots.
        length = card.part("meta").whole("n_ctx") if "meta" in card else card.whole("max_model_len")
        return name, length

    def _check_model(
        self, replica: Replica, record: _Record, model: tuple[str, int | None]
    ) -> None:
        if record.model not in (None, model):
            raise _WrongModelError(
                f"The replica {replica.name} now serves {_model_words(model)}; it had "
                f"{_model_words(record.model)}. It gets no requests.",
                "Start it with the old model, or this server anew.",
            )

    async def _check_tokens(self, replica: Replica, model: str) -> None:
        """Refuse an engine with another vocabulary; one that does not tell is trusted."""
        call = replica.dialect.tokenize(TOKEN_TEXT, model)
        if call is None:
            return
        url = f"{replica.url}{call.path}"
        answer = await self._http.post(url, json=call.body, headers=key_header(replica))
        if answer.status_code != httpx.codes.OK:
            return
        token_ids = read_event(answer.text).wholes("tokens")
        try:
            text = self._tokenizer.decode(token_ids).strip()
            seen = f"Its tokens for {TOKEN_TEXT[:19]!r}… are {text[:19]!r}… here."
        except HeadlongError as error:
            text, seen = "", error.problem
        if text != TOKEN_TEXT:
            problem = f"The replica {replica.name} runs another model than this server was given."
            remedy = "Start both with the same model."
            raise _WrongModelError(f"{problem} {seen} It gets no requests.", remedy)

    def _move(self, replica: Replica, state: ReplicaState, problem: str | None = None) -> None:
        """Change a replica's state, and say so where that matters."""
        before, replica.state, replica.problem = replica.state, state, problem
        if state is before:
            return
        if state is ReplicaState.DOWN:
            _log.error("The replica %s is down. %s", replica.name, problem)
        elif state is ReplicaState.UP:
            _log.info("The replica %s is up.", replica.name)


class _WrongModelError(EngineError):
    """A replica serves something else than it should."""


def _model_words(model: tuple[str, int | None]) -> str:
    name, length = model
    return f"{name!r}" if length is None else f"{name!r} with {length} tokens of context"


def _words(error: Exception) -> str:
    return f"{str(error).rstrip('.') or type(error).__name__}."
