"""The fleets in deploy/: the server's arguments are read by the server, names lead somewhere."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from headlong.cli.main import main
from headlong.server.settings import ServerSettings, declared_settings
from headlong.server.settings_sources import variable_name

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE: Mapping[str, Any] = yaml.safe_load((DEPLOY / "fleet-compose.yaml").read_text())
MANIFEST = list(yaml.safe_load_all((DEPLOY / "fleet-kubernetes.yaml").read_text()))

KNOWN = {variable_name(declared.name) for declared in declared_settings()} | {"HEADLONG_API_KEY"}


def manifest(kind: str, name: str) -> Any:
    """Return one object of the manifest."""
    found = [one for one in MANIFEST if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{kind} {name}"
    return found[0]


def pod(kind: str, name: str) -> Any:
    """Return the only container of an object's pods, and their spec."""
    spec = manifest(kind, name)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return container, spec


def engines() -> Iterator[tuple[str, list[str]]]:
    """Yield the addresses of all engines with the arguments they are started with."""
    for name, service in COMPOSE["services"].items():
        if name != "front":
            yield f"http://{name}:8000", service["command"]
    for pool in ("plain", "drafting"):
        container, _ = pod("StatefulSet", pool)
        for number in range(manifest("StatefulSet", pool)["spec"]["replicas"]):
            yield f"http://{pool}-{number}.{pool}:8000", container["args"]


ENGINES = dict(engines())
FRONTS = {
    "compose": COMPOSE["services"]["front"]["command"],
    "kubernetes": pod("Deployment", "headlong")[0]["args"],
}


@pytest.mark.parametrize("place", FRONTS)
def test_the_server_understands_its_arguments(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KNOWN:
        monkeypatch.delenv(name, raising=False)
    assert main([*FRONTS[place], "--print-config", "--json"]) == 0
    told = {name: one["value"] for name, one in json.loads(capsys.readouterr().out).items()}
    assert told["engine"] == "vllm"
    named = [*told["engine_url"], *(url.partition("=")[0] for url in told["speculative_url"])]
    dotted = place == "kubernetes"
    assert sorted(named) == sorted(url for url in ENGINES if ("." in url) == dotted)
    for url in told["speculative_url"]:
        address, _, depth = url.partition("=")
        assert _depth(ENGINES[address]) == int(depth)
    for url in told["engine_url"]:
        assert _depth(ENGINES[url]) == 0


def _depth(arguments: list[str]) -> int:
    """Return how many tokens an engine drafts."""
    found = [one.partition("=")[2] for one in arguments if one.startswith("--speculative-config")]
    return int(json.loads(found[0])["num_speculative_tokens"]) if found else 0


@pytest.mark.parametrize("url", ENGINES)
def test_engines_have_what_the_server_counts_on(url: str) -> None:
    """Its grammars need guidance; a plain replica does not start with statistics of drafts."""
    arguments = ENGINES[url]
    assert "--structured-outputs-config.backend=guidance" in arguments
    assert "--enable-prompt-tokens-details" in arguments
    has_statistics = "--per-request-spec-decode-metrics=detailed" in arguments
    assert has_statistics == bool(_depth(arguments))


def test_variables_are_real_ones() -> None:
    container, _ = pod("Deployment", "headlong")
    named = {one["name"] for one in container["env"]}
    named |= set(COMPOSE["services"]["front"]["environment"])
    assert named <= KNOWN


def test_the_service_does_not_set_the_port() -> None:
    """A service named headlong gives pods HEADLONG_PORT=tcp://…, where no port can be read."""
    assert manifest("Service", "headlong")
    assert pod("Deployment", "headlong")[1]["enableServiceLinks"] is False


def test_stopping_waits_longer_than_the_drain() -> None:
    least = ServerSettings().drain_timeout_s + 5
    seconds = re.fullmatch(r"(\d+)s", COMPOSE["services"]["front"]["stop_grace_period"])
    assert seconds is not None
    assert int(seconds[1]) > least
    assert pod("Deployment", "headlong")[1]["terminationGracePeriodSeconds"] > least


def test_nothing_but_the_server_is_published() -> None:
    ports = {name: one.get("ports") for name, one in COMPOSE["services"].items()}
    assert {name for name, published in ports.items() if published} == {"front"}
    assert all(port.startswith("127.0.0.1:") for port in ports["front"])
    policy = manifest("NetworkPolicy", "headlong-vllm")["spec"]
    labels = {"app": "headlong-vllm"}
    assert policy["podSelector"]["matchLabels"] == labels
    for pool in ("plain", "drafting"):
        template = manifest("StatefulSet", pool)["spec"]["template"]
        assert labels.items() <= template["metadata"]["labels"].items()
        selector = manifest("Service", pool)["spec"]["selector"]
        assert selector == template["metadata"]["labels"]
