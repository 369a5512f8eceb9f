"""An attack on a server with bounded load: each check states a fact that must hold.

    python bench/attack.py [--model MODEL] [--url http://127.0.0.1:PORT]

Starts `headlong serve` with short limits (or takes a server on loopback; what needs short limits is
then left out) and sends it, one after another: hostile chat templates, forged hosts and origins,
broken HTTP, control tokens in texts, schemas and grammars that cannot be followed, bodies that are
no requests, too many prompts, and clients that leave. Prints what held; the last line is JSON, the
exit code is 0 when everything held. It talks to loopback addresses only.
"""

import argparse
import ipaddress
import json
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from attack_requests import ask_too_much, babble, dawdle, forge_hosts, forge_tokens, send_schemas
from attack_server import CHAT, NORMAL, WAIT_S, Facts, Server

from headlong.errors import TextError
from headlong.provenance import read_provenance
from headlong.text.template_sandbox import BoundedTemplate, TemplateProcess

MOST_S = 400
"""Longest that the whole list may take."""

GROW = (
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"
)
LONG = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TEMPLATES = {
    "nests lists and compares them": GROW,
    "loops for long": LONG,
    "makes lists of ranges": "{% for i in range(99999) %}"
    "{% set x = range(99999)|list %}{% endfor %}",
    "has 2 MB": "{% if a %}b{% endif %}" * 95_000,
    "doubles a list for ever": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}"
    "{% set n.s = n.s + n.s %}{% endfor %}",
    "reaches for Python": "{{ ''.__class__.__mro__ }}",
}


@dataclass
class Outcome:
    """What came of one check."""

    fact: str
    held: bool
    seen: str
    seconds: float


def attack_with_templates(_: Server) -> Facts:
    """Render hostile templates in the process that models' templates are rendered in."""
    process = TemplateProcess(max_seconds=0.5)
    try:
        for name, source in TEMPLATES.items():
            began_s = time.monotonic()
            try:
                seen = BoundedTemplate(source, process).render({})[:80]
                held = False
            except TextError as error:
                seen, held = str(error), time.monotonic() - began_s < 10
            yield f"a template that {name} is stopped with a reason", held, seen
        text = BoundedTemplate("{{ 1 }}", process).render({})
        yield "the next template is rendered", text == "1", text
    finally:
        process.stop()


def attack_with_a_model(_: Server) -> Facts:
    """Serve a tiny model whose own template hangs; watch, then press Ctrl-C while it does."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from talking_model import write_talking_model  # only this check wants it

    with tempfile.TemporaryDirectory() as folder:
        path = write_talking_model(Path(folder) / "tiny.gguf", chat_template=GROW)
        server = Server(None, str(path))
        seen: list[httpx.Response] = []
        try:
            asking = threading.Thread(target=_ask, args=(server, seen))
            asking.start()
            waits_s = []
            while asking.is_alive():
                began_s = time.monotonic()
                server.client.get("/health").raise_for_status()
                waits_s.append(time.monotonic() - began_s)
                time.sleep(0.05)
            alive = len(waits_s) > 5 and max(waits_s) < 1
            yield "/health answers while a template hangs", alive, f"{max(waits_s):.2f} s"
            text = seen[0].text if seen else "no answer"
            yield "its request is refused with a reason", "chat template took" in text, text
            threading.Thread(target=_ask, args=(server, seen)).start()
            time.sleep(0.5)
        finally:
            began_s = time.monotonic()
            code = server.stop()
        took_s = time.monotonic() - began_s
        yield "Ctrl-C ends a server whose template hangs", code == 0, f"code {code}, {took_s:.1f} s"


def _ask(server: Server, seen: list[httpx.Response]) -> None:
    with suppress(httpx.HTTPError):  # the server leaves first, when it is told to
        url = server.url + CHAT
        seen.append(httpx.post(url, json=NORMAL, timeout=WAIT_S, trust_env=False))


def answer_normally(server: Server) -> str:
    """Return what a normal request gets."""
    return str(server.post(CHAT, NORMAL).raise_for_status().json()["choices"][0]["message"])


def run_all(server: Server, outcomes: list[Outcome]) -> None:
    """Run the list; note what came of each check, and that the server still stands."""
    before = answer_normally(server)
    checks = [attack_with_templates, attack_with_a_model, forge_hosts, dawdle, forge_tokens]
    checks += [send_schemas, babble, ask_too_much]
    if server.process is None:
        checks.remove(dawdle)

    def after(server: Server) -> Facts:
        """Compare with what was before, and read the log."""
        text = answer_normally(server)
        yield "a normal request answers with the same text as before", text == before, text
        if server.process is not None:
            faults = [line[:300] for line in server.lines if '"level": "error"' in line]
            held = bool(server.lines) and not faults
            yield "the log has no fault", held, faults[:2] or f"{len(server.lines)} lines"

    for check in [*checks, after]:
        began_s = time.monotonic()
        try:
            for fact, held, seen in check(server):
                took_s = time.monotonic() - began_s
                outcomes.append(Outcome(fact, held and took_s < WAIT_S, str(seen)[:300], took_s))
                began_s = time.monotonic()
            status: object = server.client.get("/health").status_code
        except Exception as error:  # whatever it was, the rest of the list goes on
            status = f"{type(error).__name__}: {error}"
        if status != 200:
            seconds = time.monotonic() - began_s
            fact = f"{check.__name__} ends with a healthy server"
            outcomes.append(Outcome(fact, False, str(status)[:300], seconds))


def main() -> int:
    """Attack and print what held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="the default model when not said")
    parser.add_argument("--url", help="a server on loopback that runs already")
    args = parser.parse_args()
    if args.url and not _is_loopback(urlsplit(args.url).hostname or ""):
        parser.error(f"{args.url!r} is not on loopback; this script attacks no other machine.")
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(MOST_S)
    outcomes: list[Outcome] = []
    server = Server(args.url, args.model)
    code = -1
    try:
        run_all(server, outcomes)
    except (KeyboardInterrupt, httpx.HTTPError) as error:
        seen = f"{type(error).__name__}: {error}"
        outcomes.append(Outcome("the list runs to its end", False, seen, 0.0))
    finally:
        code = server.stop()
    outcomes.append(Outcome("the server ends with code 0", code == 0, f"code {code}", 0.0))
    for one in outcomes:
        mark = "held" if one.held else "FAULT"
        sys.stdout.write(f"{mark:5} {one.seconds:6.2f} s  {one.fact}\n")
        if not one.held:
            sys.stdout.write(f"{'':16}{one.seen}\n")
    num_held = sum(one.held for one in outcomes)
    sys.stdout.write(f"{num_held} of {len(outcomes)} held\n")
    record = {**vars(args), "outcomes": [asdict(one) for one in outcomes]}
    sys.stdout.write(json.dumps(record | {"provenance": read_provenance().to_dict()}) + "\n")
    return 0 if num_held == len(outcomes) else 1


def _give_up(*_: object) -> None:
    raise KeyboardInterrupt(f"more than {MOST_S} s")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    sys.exit(main())
