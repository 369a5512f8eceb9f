"""A server at capacity with bad company, for as long as you like; then everything is counted.

    python bench/soak.py [--minutes 15] [--model MODEL] [--clients 24] [--seed 0]

Starts `headlong serve` with little room and sends it, all at once and at random: streams and whole
answers, tools, JSON schemas, several choices, clients that leave, read slowly, stall or are killed,
and bodies that are no requests. Passes when every request was answered as it should be, equal
requests got equal answers, no stream stood still, and at the end no sequence, cache, connection or
memory is left over. The last line is JSON; the exit code is 0 when it passed.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
from soak_requests import KILLED_CLIENT, MALFORMED, draw_body, joined, said

from headlong.provenance import read_provenance

LIMITS = ("--max-running", "8", "--max-waiting", "8", "--kv-bytes", "48MiB")
MORE_LIMITS = ("--prefix-bytes", "12MiB", "--request-timeout-s", "120")
STUCK_S = 150.0
"""A request that has had no answer for so long is stuck; the server's own limit is less."""

MAX_GROWTH_BYTES = 48 << 20
"""What resident memory may grow by between the first third and the last, allocators being so."""


@dataclass
class Tally:
    """What happened so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    """Texts by request: an equal request must get an equal text."""
    rss_bytes: list[int] = field(default_factory=list)
    slowest_s: float = 0.0

    def fault(self, what: str) -> None:
        """Note something that must not happen."""
        self.faults.append(what[:500])
        self.outcomes["FAULT"] += 1

    def check_text(self, body: dict[str, Any], text: str) -> None:
        """Compare with what an equal request got before, whatever its policy was."""
        same = {name: value for name, value in body.items() if name not in ("mtp", "stream")}
        key = json.dumps(same, sort_keys=True)
        if self.answers.setdefault(key, text) != text:
            self.fault(f"another text for {key}: {text!r}, before {self.answers[key]!r}")


class Soak:
    """Clients of one server."""

    def __init__(self, url: str, seed: int, until_s: float) -> None:
        self.url = url
        self.tally = Tally()
        self._until_s = until_s
        self._seed = seed

    async def run(self, num_clients: int, process: psutil.Process) -> None:
        """Run all clients until the time is over."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=num_clients)
        async with httpx.AsyncClient(base_url=self.url, timeout=STUCK_S, limits=limits) as client:
            clients = [
                self._behave(client, random.Random(f"{self._seed}-{i}")) for i in range(num_clients)
            ]
            await asyncio.gather(*clients, self._kill_clients(), self._watch(client, process))

    async def _behave(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        manners = (self._ask, self._ask, self._ask, self._leave, self._dawdle, self._babble)
        while time.monotonic() < self._until_s:
            began_s = time.monotonic()
            try:
                await rng.choice(manners)(client, rng)
            except httpx.TimeoutException:
                self.tally.fault(f"no answer within {STUCK_S:g} s")
            except httpx.HTTPError as error:
                self.tally.fault(f"{type(error).__name__}: {error}")
            self.tally.slowest_s = max(self.tally.slowest_s, time.monotonic() - began_s)
            await asyncio.sleep(rng.uniform(0, 0.2))

    async def _ask(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        """Ask properly and read to the end."""
        body = draw_body(rng)
        if body["stream"]:
            await self._read_stream(client, body, pause_s=0)
            return
        response = await client.post("/v1/chat/completions", json=body)
        if self._is_answer(response.status_code, response.headers):
            choices = response.json()["choices"]
            self.tally.check_text(body, repr([said(one["message"]) for one in choices]))
            self.tally.outcomes["whole"] += 1

    async def _dawdle(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        """Read slowly, or stall for a while."""
        body = {**draw_body(rng), "stream": True, "logprobs": True, "top_logprobs": 20}
        await self._read_stream(client, body, pause_s=rng.choice((0.05, 0.3)))

    async def _read_stream(
        self, client: httpx.AsyncClient, body: dict[str, Any], pause_s: float
    ) -> None:
        chunks: list[dict[str, Any]] = []
        last = ""
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if not self._is_answer(response.status_code, response.headers):
                return
            async for line in response.aiter_lines():
                last = line or last
                if line.startswith("data: {"):
                    chunks.append(json.loads(line.removeprefix("data: ")))
                    await asyncio.sleep(pause_s)
        if last != "data: [DONE]":
            self.tally.fault(f"a stream ended with {last!r}")
            return
        deltas: dict[int, list[dict[str, Any]]] = {}
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            deltas.setdefault(choice["index"], []).append(choice["delta"])
        self.tally.check_text(body, repr([joined(deltas[i]) for i in sorted(deltas)]))
        self.tally.outcomes["slow stream" if pause_s else "stream"] += 1

    async def _leave(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        """Leave at any moment: while queued, in the prompt, in the answer."""
        body = {**draw_body(rng), "max_tokens": 400}
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await asyncio.wait({asking}, timeout=rng.uniform(0, 1.5))
        if asking.done():
            self._is_answer(asking.result().status_code, asking.result().headers)
            return
        asking.cancel()
        await asyncio.wait({asking})
        self.tally.outcomes["left"] += 1

    async def _babble(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        """Send what is no request."""
        content, status = rng.choice(MALFORMED)
        headers = {"content-type": "application/json"}
        response = await client.post("/v1/chat/completions", content=content, headers=headers)
        if response.status_code not in (status, 429) or "error" not in response.json():
            self.tally.fault(f"{response.status_code} for {content[:60]!r}")
        self.tally.outcomes["malformed"] += 1
        await asyncio.sleep(0.2)

    def _is_answer(self, status: int, headers: httpx.Headers) -> bool:
        if status == 429:
            if int(headers.get("retry-after", 0)) < 1:
                self.tally.fault("429 without Retry-After")
            self.tally.outcomes["429"] += 1
        elif status != 200:
            self.tally.fault(f"status {status} for a proper request")
        return status == 200

    async def _kill_clients(self) -> None:
        """Every few seconds, kill a process in the middle of three streams."""
        while time.monotonic() < self._until_s:
            process = subprocess.Popen(
                [sys.executable, "-c", KILLED_CLIENT, self.url], stderr=subprocess.DEVNULL
            )
            await asyncio.sleep(4)
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.tally.outcomes["killed client"] += 1
            await asyncio.sleep(6)

    async def _watch(self, client: httpx.AsyncClient, process: psutil.Process) -> None:
        """Note the server's memory; health must answer at any time."""
        while time.monotonic() < self._until_s:
            (await client.get("/health")).raise_for_status()
            self.tally.rss_bytes.append(process.memory_info().rss)
            if len(self.tally.rss_bytes) % 10 == 0:
                left_s, outcomes = self._until_s - time.monotonic(), self.tally.outcomes
                sys.stderr.write(f"{left_s:5.0f} s left, {outcomes.total()} exchanges\n")
            await asyncio.sleep(2)


def check_after(url: str, process: psutil.Process, tally: Tally) -> dict[str, float]:
    """Look for what is left over once all clients are gone."""
    deadline_s = time.monotonic() + 30
    while True:
        now = read_metrics(url)
        idle = now["num_requests_running"] + now["num_requests_waiting"] == 0
        connections = [one for one in process.net_connections() if one.status == "ESTABLISHED"]
        if (idle and not connections) or time.monotonic() > deadline_s:
            break
        time.sleep(0.2)
    if not idle:
        tally.fault(f"{now['num_requests_running']:g} requests still run, nobody reads them")
    if connections:
        tally.fault(f"{len(connections)} connections are still open")
    if now["kv_bytes"] != now["prefix_bytes"]:
        tally.fault(f"{now['kv_bytes'] - now['prefix_bytes']:g} bytes of cache belong to nobody")
    if now["requests_received_total"] != now["requests_finished_total"]:
        tally.fault(
            f"{now['requests_received_total']:g} requests began,"
            f" {now['requests_finished_total']:g} ended"
        )
    third = len(tally.rss_bytes) // 3
    early = statistics.median(tally.rss_bytes[third : 2 * third])
    late = statistics.median(tally.rss_bytes[2 * third :])
    if late - early > MAX_GROWTH_BYTES:
        tally.fault(f"memory grew by {(late - early) / 2**20:.0f} MiB")
    return {**now, "rss_early_mib": early / 2**20, "rss_late_mib": late / 2**20}


def read_metrics(url: str) -> dict[str, float]:
    """Return the server's numbers, summed over labels."""
    found: Counter[str] = Counter()
    for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        match = re.fullmatch(r"headlong:(\w+)(?:\{.*\})? (\S+)", line)
        if match and not match[1].endswith("_bucket"):
            found[match[1]] += float(match[2])  # type: ignore[assignment] # a sum of floats
    return dict(found)


def start_server(model: str | None) -> tuple[subprocess.Popen[str], str]:
    """Start the server and return it with its address."""
    named = [model] if model else []
    command = [
        sys.executable,
        "-m",
        "headlong",
        "serve",
        *named,
        "--port",
        "0",
        *LIMITS,
        *MORE_LIMITS,
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://[\w.:]+", line):
            return process, found[0]
    raise SystemExit("The server did not start.")


def main() -> int:
    """Run the soak and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--model", help="the default model when not said")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    server, url = start_server(args.model)
    lines: list[str] = []
    threading.Thread(target=lambda: lines.extend(server.stderr or ()), daemon=True).start()
    process = psutil.Process(server.pid)
    soak = Soak(url, args.seed, time.monotonic() + 60 * args.minutes)
    asyncio.run(soak.run(args.clients, process))
    tally = soak.tally
    after = check_after(url, process, tally)
    server.terminate()
    if server.wait(timeout=60) != 0:
        tally.fault(f"the server ended with code {server.returncode}")
    tally.faults += [f"log: {line[:400]}" for line in lines if '"error"' in line]
    for name, num in sorted(tally.outcomes.items()):
        sys.stdout.write(f"{num:7} {name}\n")
    shown = ("rss_early_mib", "rss_late_mib", "preemptions_total", "generation_tokens_total")
    sys.stdout.write("".join(f"{after[name]:9.0f} {name}\n" for name in shown))
    sys.stdout.write(f"{tally.slowest_s:9.1f} s, the longest exchange\n")
    sys.stdout.write("".join(f"FAULT {fault}\n" for fault in tally.faults[:20]))
    sys.stdout.write("passed\n" if not tally.faults else f"{len(tally.faults)} faults\n")
    record = {**vars(args), "outcomes": dict(tally.outcomes), "faults": tally.faults[:50]}
    record |= {"after": after, "provenance": read_provenance().to_dict()}
    sys.stdout.write(json.dumps(record) + "\n")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
