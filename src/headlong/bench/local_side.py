"""This process as a side: one loaded model, one MTP mode.

In:  an `LLM`, a mode, questions. Out: answers, timed where a user of the Python API would stand.
Both sides of a comparison share the model, its memory and its token counter.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headlong.bench.measure import Question, TimedAnswer, time_pieces
from headlong.bench.prompt_sets import BenchPrompt
from headlong.config import MtpMode
from headlong.errors import HeadlongError, RequestError
from headlong.generation import Generation
from headlong.heads.head_files import CONFIG_FILE
from headlong.heads.shipped_heads import find_shipped_head
from headlong.llm import LLM
from headlong.prompt import Prompt

_WARM_UP_TOKENS = 12


@dataclass(slots=True)
class LocalSide:
    """Answers with the loaded model in one MTP mode; is warmed up once."""

    llm: LLM
    mtp: MtpMode
    is_raw: bool = False
    """Continue prompts as they stand, without the chat template."""

    name: str = ""
    """The mode as one would type it, unless another name is given."""
    _is_warm: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.name = self.name or str(self.mtp)

    @property
    def label(self) -> str:
        """The mode for people."""
        return f"MTP K={self.mtp}" if isinstance(self.mtp, int) else f"MTP {self.mtp}"

    def warm_up(self, question: Question) -> None:
        """Touch every weight and every path once."""
        if not self._is_warm:
            self._start(replace(question, max_tokens=_WARM_UP_TOKENS)).complete()
        self._is_warm = True

    def answer(self, question: Question) -> TimedAnswer:
        """Answer a question, noting when each token is there."""
        # What one side has read of a prompt must not be spared the other.
        self.llm.engine.clear_prefixes()
        began_s = time.perf_counter()
        generation = self._start(question)
        times_s = [time.perf_counter() for _ in generation]
        completion = generation.complete()
        return TimedAnswer(
            num_tokens=len(completion.token_ids),
            ttft_s=times_s[0] - began_s,
            total_s=times_s[-1] - began_s,
            text=completion.text,
            token_ids=completion.token_ids,
            num_prompt_tokens=completion.num_prompt_tokens,
            finish_reason=str(completion.finish_reason),
            acceptance=completion.stats,
            **time_pieces(times_s),
            prefill_s=completion.timings.prefill_s,
            prefill_head_s=completion.timings.prefill_head_s,
        )

    def _start(self, question: Question) -> Generation:
        return self.llm.stream(
            model_input(self.llm, question.prompt, is_raw=self.is_raw),
            mtp=self.mtp,
            max_tokens=question.max_tokens,
            temperature=question.temperature,
            seed=question.seed,
            tools=question.prompt.tools,
        )


def model_input(llm: LLM, prompt: BenchPrompt, *, is_raw: bool) -> Prompt:
    """Return a prompt as the model's input: messages, or plain text if it has no template."""
    if prompt.text is not None and (is_raw or llm.tokenizer.chat_template is None):
        return prompt.text
    return prompt.messages


def split_by_context(
    llm: LLM, prompts: Sequence[BenchPrompt], *, is_raw: bool
) -> tuple[list[BenchPrompt], list[str]]:
    """Return the prompts the model has room for, and for each other one why not."""
    limit = llm.backbone.config.context_length
    fitting, skipped = [], []
    for prompt in prompts:
        try:
            num_tokens = len(
                llm.encode(model_input(llm, prompt, is_raw=is_raw), prompt.tools or None)
            )
        except HeadlongError as error:  # said with the place: there may be hundreds
            raise RequestError(f"{prompt.name}: {error.problem}", error.remedy) from error
        if num_tokens < limit:
            fitting.append(prompt)
        else:
            skipped.append(
                f"{prompt.name} has {num_tokens:,} tokens; the model's context holds {limit:,}."
            )
    return fitting, skipped


def name_head(llm: LLM, given: Path | None) -> str:
    """Name the head that drafts for a model."""
    if llm.head is None:
        return "none"
    is_native = given is None and llm.report.head_tensors
    folder = None if is_native else given or find_shipped_head(llm.backbone)
    if folder is None:
        return "the model's own"
    folder = (folder if folder.is_dir() else folder.parent).resolve()
    files = [folder / CONFIG_FILE, *sorted(folder.glob("*.safetensors"))]
    content = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    return f"{folder.name} ({content.hexdigest()[:10]})"
