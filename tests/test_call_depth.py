"""How many calls lie between a caller who asks for a token and the kernel that computes it."""

import sys
from types import FrameType
from typing import Any

from headlong.llm import LLM
from headlong.ops.native.ops import NativeOps

MAX_CALLS = 7


def test_plain_round_reaches_the_kernel_in_seven_calls(default_llm: LLM) -> None:
    """Every layer of calls is one more place to read when following a request."""
    stream = default_llm.stream("One, two,", mtp="off", max_tokens=4, ignore_eos=True)
    next(stream)  # the prompt and the first token
    depths: list[int] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is NativeOps.run_layers.__code__:
            depths.append(1 + calls_from_next(frame))  # which makes the call into the kernel

    sys.setprofile(watch)
    try:
        next(stream)
    finally:
        sys.setprofile(None)
        stream.close()
    assert len(depths) == 1, "a plain round runs all layers in one call"
    assert depths[0] <= MAX_CALLS


def calls_from_next(frame: FrameType | None) -> int:
    """Count the calls from `Generation.__next__` to a frame."""
    count = 0
    while frame is not None and frame.f_code.co_name != "__next__":
        frame, count = frame.f_back, count + 1
    assert frame is not None
    return count
