import logging
import time

import pytest

from headlong.weights.progress import POLL_INTERVAL_S, LogProgress, watched


class Recorder:
    def __init__(self) -> None:
        self.counts: list[int] = []

    def begin(self, label: str, total_bytes: int | None, done_bytes: int) -> None: ...

    def update(self, done_bytes: int) -> None:
        self.counts.append(done_bytes)

    def note(self, text: str) -> None: ...


def test_growth_is_reported_while_the_block_runs() -> None:
    recorder = Recorder()
    with watched(lambda: 7, recorder):
        time.sleep(POLL_INTERVAL_S * 2.5)
    num_reports = len(recorder.counts)
    assert num_reports >= 1
    assert set(recorder.counts) == {7}
    time.sleep(POLL_INTERVAL_S * 1.5)
    assert len(recorder.counts) == num_reports


def test_log_says_what_is_pulled(caplog: pytest.LogCaptureFixture) -> None:
    progress = LogProgress()
    with caplog.at_level(logging.INFO, logger="headlong"):
        progress.begin("some-model", 1234, 0)
        progress.note("waiting")
    assert caplog.messages == ["pulling some-model (1,234 bytes)", "waiting"]
