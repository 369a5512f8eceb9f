"""The files in deploy/: what they name exists, and what they run works."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headlong.server.settings import ServerSettings, declared_settings
from headlong.server.settings_sources import variable_name
from server_process import ServerProcess
from talking_model import write_talking_model

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
UNIT = (ROOT / "deploy" / "headlong.service").read_text()

KNOWN = {variable_name(declared.name) for declared in declared_settings()}
KNOWN |= {"HEADLONG_API_KEY", "HEADLONG_API_KEY_FILE", "HEADLONG_CACHE", "HEADLONG_STATE"}


@pytest.mark.parametrize("text", [DOCKERFILE, UNIT], ids=["Dockerfile", "headlong.service"])
def test_variables_are_real_ones(text: str) -> None:
    named = set(re.findall(r"\bHEADLONG_[A-Z_]+", text))
    assert named
    assert named <= KNOWN


def test_the_image_is_built_from_all_the_build_needs() -> None:
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    needed = {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "csrc", "src"}
    assert kept == needed
    assert all((ROOT / name).exists() for name in kept)


def test_the_image_runs_as_nobody_special() -> None:
    last_stage = DOCKERFILE.split("\nFROM ")[-1]
    assert re.search(r"^USER headlong$", last_stage, re.MULTILINE)


@pytest.mark.parametrize("variable", ["HEADLONG_CACHE", "HEADLONG_STATE", "HF_HOME"])
def test_pulled_models_lie_where_the_server_may_write(variable: str) -> None:
    """The unit's user has no home, and what is outside the volume goes with the container."""
    volume = re.search(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)
    folder = re.search(r"^CacheDirectory=(\S+)$", UNIT, re.MULTILINE)
    assert volume is not None
    assert folder is not None
    for text, writable in ((DOCKERFILE, volume[1]), (UNIT, f"%C/{folder[1]}")):
        found = re.search(rf"\b{variable}=(\S+)", text)
        assert found is not None
        assert Path(found[1]).is_relative_to(writable)


@pytest.mark.parametrize("name", ["deploy/Dockerfile", "docs/server.md"])
def test_docker_waits_longer_than_the_drain(name: str) -> None:
    """`docker stop` kills after 10 s unless it is told otherwise."""
    commands = re.findall(r"docker run .*-p .*", (ROOT / name).read_text())
    assert commands
    for command in commands:
        found = re.search(r"--stop-timeout (\d+)", command)
        assert found is not None, command
        assert int(found[1]) > ServerSettings().drain_timeout_s + 5


def test_the_health_check_tells_life_from_death(tmp_path: Path) -> None:
    found = re.search(r"HEALTHCHECK.*?CMD (\[.*?\])$", DOCKERFILE, re.DOTALL | re.MULTILINE)
    assert found is not None
    program, *arguments = json.loads(found[1])
    assert program == "python"
    model = str(write_talking_model(tmp_path / "tiny.gguf"))
    with ServerProcess(model) as server:
        environ = os.environ | {"HEADLONG_PORT": server.url.rpartition(":")[2]}
        # Docker gives a container its user's proxy; nobody answers at this one.
        environ |= {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
        alive = subprocess.run([sys.executable, *arguments], env=environ, check=False)
        server.signal()
        assert server.wait() == 0
    dead = subprocess.run(
        [sys.executable, *arguments], env=environ, check=False, stderr=subprocess.DEVNULL
    )
    assert (alive.returncode, dead.returncode != 0) == (0, True)


def test_systemd_waits_longer_than_the_drain() -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert found is not None
    assert int(found[1]) > ServerSettings().drain_timeout_s + 5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_the_unit_is_understood(tmp_path: Path) -> None:
    """With a program that is there; systemd would complain about the missing one alone."""
    unit = tmp_path / "headlong.service"
    unit.write_text(UNIT.replace("/opt/headlong/bin/headlong", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "headlong.service" in line]
    assert complaints == []
