"""The load of `bench/front_load.py`, but shorter: engines die, dawdle, garble; nothing is lost."""

import json
import subprocess
import sys
from pathlib import Path

from talking_model import write_talking_model

SCRIPT = Path(__file__).parents[2] / "bench" / "front_load.py"


def test_no_answer_is_lost_doubled_or_mixed_up(tmp_path: Path) -> None:
    model = write_talking_model(tmp_path / "tiny.gguf", context_length=512)
    out = tmp_path / "load.json"
    load = ["--seconds", "10", "--rate", "20", "--kill-every", "5"]
    command = [sys.executable, str(SCRIPT), "--model", str(model), "--json", str(out), *load]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(out.read_text())["front_load"]
    assert told["asked"] == told["right"] == 200
    assert told["kills"] >= 1
    assert told["streamed"] == 100
    failures = {name: told[name] for name in ("lost", "told", "twice", "mixed up", "refused")}
    assert not any(failures.values()), told["examples"]
