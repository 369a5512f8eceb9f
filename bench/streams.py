"""Many streams at a time: "auto" against "off", engines that step in turns on the same weights.

    python bench/streams.py [--streams 8] [--requests 40] [--tokens 96] [--temperature 0]
                            [--tasks code,chat] [--prompts FILE.jsonl] [--model MODEL]

Three engines run the same requests: off, auto, and off again. After every step it is another one's
turn, so that whatever the machine does hits all three alike; how far the two that are the same
differ says what a difference means. As soon as one answer ends, the next request begins. Answers
may be half as long to half as long again as said: if all had one length, those of "off" would go on
ending together, and share the reading of the next prompts. All sides must give the same number of
tokens. The last line is JSON.
"""

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headlong.bench.prompt_sets import BenchPrompt, read_prompt_set
from headlong.config import MtpMode
from headlong.decode.request import Request
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import Running
from headlong.llm import LLM, make_request
from headlong.provenance import read_provenance

SIDES: dict[str, MtpMode] = {"off": "off", "auto": "auto", "off again": "off"}

PREFIX_BYTES = 48 << 20
"""Little, so that memory soon comes from ended requests as it does in a server after a while."""


@dataclass
class Side:
    """One engine, and how far it has come with the requests."""

    engine: Engine
    todo: list[Request]
    running: list[Running] = field(default_factory=list)
    ended: list[Running] = field(default_factory=list)
    seconds: float = 0.0

    def step(self, num_streams: int) -> None:
        """Let as many requests run as there may be, and move them on."""
        while self.todo and len(self.running) < num_streams:
            self.running.append(self.engine.submit(self.todo.pop(0)))
        began_s = time.perf_counter()
        self.engine.step()
        self.seconds += time.perf_counter() - began_s
        self.ended += [one for one in self.running if one.finish_reason is not None]
        self.running = [one for one in self.running if one.finish_reason is None]

    @property
    def is_done(self) -> bool:
        """Whether all requests have ended."""
        return not self.todo and not self.running

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(one.num_emitted for one in self.ended)

    @property
    def num_drafted(self) -> int:
        """Draft tokens of all answers."""
        return sum(one.stats.num_drafted for one in self.ended)


def main() -> int:
    """Measure task by task and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="the default model when not said")
    parser.add_argument("--prompts", help="a file of prompts; the built-in tasks when not said")
    parser.add_argument("--tasks", help="only these, with commas between them")
    parser.add_argument("--streams", type=int, default=8, help="answers at one time")
    parser.add_argument("--requests", type=int, default=40, help="of each task")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer in the mean, at most")
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    llm = LLM.load(args.model)
    gc.freeze()  # as the server does; else 30 ms of looking at the model hit one side by chance
    prompts = read_prompt_set([args.prompts] if args.prompts else [], sys.stdin.read).prompts
    tasks = args.tasks.split(",") if args.tasks else sorted({prompt.task for prompt in prompts})
    results: dict[str, Any] = {}
    limits = EngineLimits(prefix_bytes=PREFIX_BYTES)
    engines = {name: Engine.for_model(llm.backbone, llm.drafter, limits) for name in SIDES}
    for task in tasks:
        chosen = [prompt for prompt in prompts if prompt.task == task]
        if not chosen:
            known = ", ".join(sorted({prompt.task for prompt in prompts}))
            sys.exit(f"No prompt has the task {task!r}; there are {known}.")
        results[task] = measured = compare(llm, engines, chosen, args)
        sys.stdout.write(
            f"{task:12}  off {measured['off']:6.0f} tokens/s  auto {measured['auto']:6.0f}"
            f"  {measured['ratio']:.3f} ×  (off again {measured['null']:.3f} ×)"
            f"  {measured['num_drafted']} drafted\n"
        )
        sys.stdout.flush()
    record = {**vars(args), "results": results, "provenance": read_provenance().to_dict()}
    sys.stdout.write(json.dumps(record) + "\n")
    return 0


def compare(
    llm: LLM, engines: dict[str, Engine], prompts: Sequence[BenchPrompt], args: argparse.Namespace
) -> dict[str, float]:
    """Let all sides work through the same requests, a step each in turn."""
    lengths = random.Random(0)
    requests = [
        make_request(
            llm.encode(prompts[i % len(prompts)].messages),
            llm.tokenizer.eos_ids,
            {
                "max_tokens": lengths.randint(args.tokens // 2, args.tokens * 3 // 2),
                "temperature": args.temperature,
                "seed": i,
            },
        )
        for i in range(args.requests)
    ]
    sides = {
        name: Side(engines[name], [replace(request, mtp=mtp) for request in requests])
        for name, mtp in SIDES.items()
    }
    turns = list(sides.values())
    while not all(side.is_done for side in turns):
        random.shuffle(turns)
        for side in turns:
            if not side.is_done:
                side.step(args.streams)
    if len({side.num_tokens for side in turns}) > 1:
        sys.exit("The sides gave different numbers of tokens: MTP has changed an answer.")
    rate = {name: side.num_tokens / side.seconds for name, side in sides.items()}
    plain = (rate["off"] + rate["off again"]) / 2
    return {
        "off": plain,
        "auto": rate["auto"],
        "ratio": rate["auto"] / plain,
        "null": rate["off again"] / rate["off"],
        "num_drafted": sides["auto"].num_drafted,
    }


if __name__ == "__main__":
    sys.exit(main())
