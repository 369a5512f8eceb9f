"""Provenance: the conditions a number was measured under.

In:  the machine, the environment and the command line of this process.
Out: a `Provenance` to print beside a measurement or to keep with it as JSON.
Knows nothing of models; imports none of the libraries whose versions it reports.
"""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("headlong", "numpy")
"""Packages whose versions can change a speed or a bit."""

_OF_BACKENDS = ("mlx", "torch", "triton")
"""The same, where they are in use."""

_COMMAND_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where, when and with what something was measured."""

    cpu: str
    num_cores: int
    """Cores this process may use, which can be fewer than the machine has."""
    platform: str
    """Operating system and processor architecture."""
    python: str
    versions: Mapping[str, str]
    commit: str | None
    """Git commit of the checkout that runs; None for an installed package."""
    has_local_changes: bool
    """Whether files of that checkout differ from the commit."""
    argv: tuple[str, ...]
    measured_at: str
    """UTC, ISO 8601, to the second."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {**asdict(self), "argv": list(self.argv)}

    @property
    def command(self) -> str:
        """The command line as one would type it."""
        return shlex.join(self.argv)

    @property
    def summary(self) -> str:
        """Machine and versions in one line for people."""
        cores = "1 core" if self.num_cores == 1 else f"{self.num_cores} cores"
        versions = [f"{name} {number}" for name, number in self.versions.items()]
        parts = [f"{self.cpu}, {cores}", *versions, f"Python {self.python}"]
        if self.commit is not None:
            changes = " with local changes" if self.has_local_changes else ""
            parts.append(f"commit {self.commit[:10]}{changes}")
        return " · ".join(parts)


def read_provenance() -> Provenance:
    """Describe this process: machine, versions, commit, command line, time."""
    commit = _git("rev-parse", "HEAD")
    return Provenance(
        cpu=_cpu_name(),
        num_cores=num_usable_cores(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        versions={
            name: _version(name)
            for name in (*PACKAGES, *(one for one in _OF_BACKENDS if one in sys.modules))
        },
        commit=commit,
        has_local_changes=commit is not None and bool(_git("status", "--porcelain")),
        argv=(Path(sys.argv[0]).name, *sys.argv[1:]),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def own_version() -> str:
    """Return the version of the package; a checkout that is not installed has none."""
    try:
        return version("headlong")
    except PackageNotFoundError:
        return "unknown (not installed)"


def find_checkout(source: Path) -> Path | None:
    """Return the git checkout that `source`, a file of src/headlong, lies in; None if installed."""
    root = source.resolve().parents[2]
    is_ours = (root / "src" / "headlong").is_dir() and (root / "pyproject.toml").is_file()
    return root if is_ours and (root / ".git").exists() else None


def _git(*arguments: str) -> str | None:
    """Ask git about the checkout this file lies in; None when there is no answer."""
    root = find_checkout(Path(__file__))
    return None if root is None else _output_of("git", "-C", str(root), *arguments)


def _output_of(*command: str) -> str | None:
    """Return what a command prints; None when it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_name() -> str:
    """Return the processor's own name; `platform` knows only its family on most systems."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    if platform.system() == "Darwin":
        name = _output_of("sysctl", "-n", "machdep.cpu.brand_string")
        if name:
            return name
    return platform.processor() or platform.machine() or "unknown processor"


def num_usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))  # respects taskset and most containers
    return os.cpu_count() or 1


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"  # run from the source folder
