"""Try a wheel as a user without a compiler would: install it, and see that its kernels answer.

Usage: check_wheel.py [--python PYTHON] WHEEL
The wheel goes into an empty environment of PYTHON whose PATH holds nothing else, so neither pip nor
anything after it finds a compiler. The default model then answers (it is pulled where it is not yet
here): with the native backend, the head that comes in the wheel, and several times the speed of
numpy.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LEAST_GAIN = 4.0
"""How many times faster than numpy the kernels must at least be: far below what they are, so that a
busy machine does not refuse a good wheel."""


def install(wheel: Path, python: str, folder: Path) -> dict[str, str]:
    """Make an environment with nothing but the wheel, and return its environment variables."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "HEADLONG_CACHE", "XDG_", "HF_", "SSL_")) or name == "HOME"
    }
    environment = kept | {
        "PATH": str(folder / "bin"),
        "PYTHONNOUSERSITE": "1",
        "OPENBLAS_NUM_THREADS": "1",  # numpy's speed on a shared machine is no speed otherwise
    }
    pip = ["python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", str(wheel)]
    run(pip, environment)
    return environment


def run(command: list[str], environment: dict[str, str]) -> str:
    """Run a program of the environment, outside the repository, and return its output."""
    program = Path(environment["PATH"]) / command[0]
    done = subprocess.run(
        [program, *command[1:]],
        env=environment,
        cwd=environment["PATH"],
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit(f"`{' '.join(command)}` failed with {done.returncode}")
    return done.stdout


def answer(environment: dict[str, str], *options: str) -> dict[str, Any]:
    """Let the default model answer, and return the report."""
    prompt = "Write a Python function that adds up the squares of the first n numbers."
    command = ["headlong", "generate", "--json", "--temperature", "0", *options, prompt]
    report: dict[str, Any] = json.loads(run(command, environment).splitlines()[-1])
    return report


def find_faults(native: dict[str, Any], numpy: dict[str, Any]) -> list[str]:
    """Return what is wrong with a wheel whose answers were these."""
    faults = []
    if native["backend"] != "native":
        faults.append(f"the backend is {native['backend']}: {native['backend_note']}")
    if not native["stats"]["num_drafted"]:
        faults.append(f"nothing was drafted; the drafter is {native['drafter']}")
    if "head" not in native["stats"]["by_drafter"]:
        faults.append(f"the shipped head was not used; the drafter is {native['drafter']}")
    gain = native["timings"]["tokens_per_second"] / numpy["timings"]["tokens_per_second"]
    if gain < LEAST_GAIN:
        faults.append(f"only {gain:.1f} times as fast as numpy, {LEAST_GAIN:g} is the least")
    return faults


def main() -> int:
    """Check one wheel and say how it went."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable, help="which Python to install it into")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = install(args.wheel.resolve(), args.python, Path(folder))
        native = answer(environment, "--max-tokens", "64")
        numpy = answer(environment, "--max-tokens", "8", "--backend", "numpy")
    faults = find_faults(native, numpy)
    for fault in faults:
        sys.stderr.write(f"{args.wheel.name}: {fault}\n")
    speeds = [f"{one['timings']['tokens_per_second']:.1f}" for one in (native, numpy)]
    sys.stdout.write(
        f"{args.wheel.name}: {native['backend']} ({native['backend_note']}) {speeds[0]} tokens/s, "
        f"numpy {speeds[1]}\n"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
