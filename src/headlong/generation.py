"""One generation as its caller sees it: a stream of chunks, then a completion.

In:  the token stream of one request.
Out: text, cut at stop strings, safe at every UTF-8 border, reasoning told from the answer. The
     engine below knows ids only.
`Generation` drives the engine itself; the server, which has a thread for that, uses the
`AnswerReader` alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headlong.decode.sampling import TokenLogprob
from headlong.decode.stats import DecodeStats, Timings
from headlong.engine.client import EngineClient, TokenStream
from headlong.engine.request import BACKBONE, Emitted, FinishReason
from headlong.prompt import PreparedPrompt
from headlong.text.detokenizer import Detokenizer
from headlong.text.reasoning import Reasoning, ReasoningReader, SplitText
from headlong.text.stop import StopScanner
from headlong.text.tokenizer import Tokenizer
from headlong.text.tool_calls import ToolCall


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one token added to the answer."""

    text: str
    """New text of the answer, maybe empty: characters, possible stop strings and tags are held back
    until they are complete."""
    token_ids: tuple[int, ...]
    from_draft: bool
    """Whether a drafter had proposed the token and the backbone agreed."""
    source: str
    """What proposed it: "backbone", "head", "ngram", "grammar" or "draft-model"."""
    depth: int
    """Its place in the draft, from 1; 0 when no drafter proposed it."""
    logprob: TokenLogprob | None = None
    finish_reason: FinishReason | None = None
    """Set on the last chunk."""
    reasoning: str = ""
    """New text of what the model thinks before it answers."""
    is_reasoning: bool = False
    """Whether the token belongs to that, tags included."""
    stop_string: str | None = None
    """The stop string that ended the answer, on the last chunk."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer and what it took."""

    text: str
    """The answer, without what the model thought before it."""
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None
    """One per token when asked for, of the backbone's own distribution before any processing."""
    num_prompt_tokens: int
    seed: int
    """The seed that was used, given or drawn: the same one gives the same text again."""
    off_reason: str | None
    """Why there were no drafts in the end, if there were none; None when drafting went on."""
    stats: DecodeStats
    timings: Timings
    tool_calls: tuple[ToolCall, ...] = ()
    """The tool calls of the answer, if tools were given."""
    warnings: tuple[str, ...] = ()
    """What had no effect or was not followed, and why it is cut where a grammar ended it."""
    reasoning: str = ""
    """What the model thought before it answered; stop strings in it end nothing."""
    num_reasoning_tokens: int = 0


class AnswerReader:
    """Turns the tokens of one answer into chunks of text, and notices where it ends."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        *,
        continues_text: bool,
        reasoning: Reasoning | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            tokenizer: Whose ids will come.
            stop: Strings to end before.
            continues_text: The answer goes on from the prompt's own text instead of beginning one.
            reasoning: How it reasons first; None leaves everything in the text.
        """
        self._detokenizer = Detokenizer(tokenizer, is_continuation=continues_text)
        self._scanner = StopScanner(stop)
        self._splitter = None if reasoning is None else ReasoningReader(reasoning)

    def read(self, emitted: Emitted, ending: FinishReason | None = None) -> Chunk:
        """Take one token; `ending` says why it is the last one, None that more may come.

        The chunk's own finish reason may come earlier: a stop string ends the answer for the
        caller, which then has to end the request.
        """
        pick = emitted.pick
        was_reasoning = self._is_reasoning
        parts = self._split(self._detokenizer.push(pick.token_id))
        is_reasoning = was_reasoning or self._is_reasoning
        found = self._scanner.push(parts.answer)
        text, hit, reasoning = found.text, found.hit, parts.reasoning
        finish_reason = None if hit is None else FinishReason.STOP
        if ending is not None and finish_reason is None:
            last, hit = self._release()
            text += last.answer
            reasoning += last.reasoning
            finish_reason = ending if hit is None else FinishReason.STOP
        return Chunk(
            text,
            (pick.token_id,),
            emitted.source != BACKBONE,
            emitted.source,
            emitted.depth,
            pick.logprob,
            finish_reason,
            reasoning,
            is_reasoning,
            hit,
        )

    @property
    def _is_reasoning(self) -> bool:
        return self._splitter is not None and self._splitter.is_inside

    def _split(self, text: str) -> SplitText:
        return SplitText("", text) if self._splitter is None else self._splitter.push(text)

    def _release(self) -> tuple[SplitText, str | None]:
        """Give out what was held back, up to a stop string that only now is complete, if any."""
        parts = self._split(self._detokenizer.flush())
        rest = SplitText("", "") if self._splitter is None else self._splitter.flush()
        last = self._scanner.push(parts.answer + rest.answer)
        reasoning = parts.reasoning + rest.reasoning
        if last.hit is not None:
            return SplitText(reasoning, last.text), last.hit
        return SplitText(reasoning, last.text + self._scanner.flush()), None


class Generation(Iterator[Chunk]):
    """An answer in the making: iterate for chunks, or `complete()` for all of it.

    Dropping it half-way ends the request. Several may be read alternately; they share passes.
    """

    def __init__(
        self,
        engine: EngineClient,
        stream: TokenStream,
        tokenizer: Tokenizer,
        prompt: PreparedPrompt,
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._reader = AnswerReader(
            tokenizer,
            stream.request.stopping.stop,
            continues_text=prompt.continues_text,
            reasoning=prompt.reasoning,
        )
        self._warnings = prompt.warnings
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._num_reasoning = 0
        self._logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None

    @property
    def stats(self) -> DecodeStats:
        """Rounds, drafted and accepted tokens so far."""
        return self._stream.report().stats

    @property
    def timings(self) -> Timings:
        """Where the seconds went so far."""
        return self._stream.report().timings

    def __next__(self) -> Chunk:
        if self.finish_reason is not None:
            raise StopIteration
        stream = self._stream
        while not stream.num_ready:
            if stream.finish_reason is not None:  # ended from elsewhere
                self.finish_reason = stream.finish_reason
                raise stream.error or StopIteration
            self._engine.step()
        (emitted,) = stream.take(1)
        is_last = not stream.num_ready and stream.error is None
        chunk = self._reader.read(emitted, stream.finish_reason if is_last else None)
        self._keep(chunk)
        if chunk.finish_reason is not None:  # maybe before the engine's own end
            self._engine.cancel(stream, chunk.finish_reason)
        return chunk

    def complete(self) -> Completion:
        """Run to the end and return the whole answer."""
        for _ in self:
            pass
        assert self.finish_reason is not None
        request, report = self._stream.request, self._stream.report()
        sampling, grammar = request.sampling, request.grammar
        warnings = () if grammar is None else (*grammar.warnings, *filter(None, [report.warning]))
        return Completion(
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            finish_reason=self.finish_reason,
            logprobs=tuple(self._logprobs) if sampling.logprobs is not None else None,
            num_prompt_tokens=report.num_prompt_tokens,
            seed=sampling.seed,
            off_reason=report.off_reason,
            stats=report.stats,
            timings=report.timings,
            warnings=(*self._warnings, *warnings),
            reasoning="".join(self._reasoning),
            num_reasoning_tokens=self._num_reasoning,
        )

    def close(self) -> None:
        """End the request now; chunks read so far are all there will be."""
        if self.finish_reason is None:
            self.finish_reason = FinishReason.CANCELLED
        self._engine.cancel(self._stream)

    def __del__(self) -> None:
        if hasattr(self, "finish_reason"):
            self.close()

    def _keep(self, chunk: Chunk) -> None:
        self._texts.append(chunk.text)
        self._reasoning.append(chunk.reasoning)
        self._num_reasoning += chunk.is_reasoning
        self._token_ids += chunk.token_ids
        if chunk.logprob is not None:
            self._logprobs.append(chunk.logprob)
        self.finish_reason = chunk.finish_reason
