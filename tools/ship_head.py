"""Make a trained head ready to be shipped: in 4 bits, with its licences and a README beside it.

Usage: ship_head.py HEAD NAME [--decoded FILE] [--out DIR] [--wheel]
HEAD is a folder that `headlong train` wrote for a model of the catalogue. It becomes the folder
DIR/NAME (default: where the package keeps its heads), or with --wheel a wheel in DIR (default:
dist) that `headlong pull` takes it from. run.json gains the licences and, with --decoded, what
`headlong eval-head --json` has measured; the README is made from it.
"""

import argparse
import base64
import hashlib
import json
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headlong.heads.head_files import read_head_weights, save_head
from headlong.heads.head_weights import QUANT_KEY
from headlong.weights.catalog import CATALOG
from headlong.weights.head_folders import HEAD_FILES, RUN_FILE, SHIPPED
from headlong.weights.pypi import WheelFile, WheelPart

LICENCE = "Apache-2.0"


def ship(head: Path, folder: Path, decoded: Path | None = None) -> None:
    """Write the folder that is shipped."""
    weights = read_head_weights(head)
    if weights.config.get(QUANT_KEY) == "q4":
        weights = weights.in_four_bits()
    record = json.loads((head / RUN_FILE).read_text(encoding="utf-8"))
    model = next(one for one in CATALOG if one.sha256 == record["model"]["sha256"])
    record |= {"licence": {"head": LICENCE, "model": model.licence}}
    if decoded is not None:
        record["decoded"] = read_decoded(decoded)
    save_head(folder, weights)
    (folder / RUN_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(describe(record, model), encoding="utf-8")


def read_decoded(path: Path) -> dict[str, Any]:
    """Return the acceptance lengths of a document of `headlong eval-head --json`."""
    document = json.loads(path.read_text(encoding="utf-8"))
    results = [
        {
            **{name: run[name] for name in ("precision", "temperature", "k")},
            "acceptance": {
                task: round(one["acceptance_length"], 3) for task, one in run["tasks"].items()
            },
        }
        for run in document["results"]
    ]
    return {name: document[name] for name in ("prompts", "max_tokens")} | {"results": results}


def describe(record: Mapping[str, Any], model: WheelFile) -> str:
    """Return the README of a head."""
    recipe, data, training = record["recipe"], record["data"], record["training"]
    rounds = _rounds(record)
    licences = {name: one["licence"] for run in rounds for name, one in run["data"]["sets"].items()}
    counts = {name: one["answers"] for name, one in data["sets"].items()}
    sets = "\n".join(
        f"| {name} | {counts.get(name, 0):,} | {licence} |"
        for name, licence in sorted(licences.items())
    )
    earlier = f", the last of {len(rounds)} rounds of training" if rounds[1:] else ""
    return f"""# MTP head for {model.name}

A head of kind {recipe["head"]["kind"]} that drafts for `{record["model"]["file"]}` (sha256 \
`{record["model"]["sha256"]}`). Headlong finds it by itself when that model is loaded, in any \
quantisation. It never changes a text, only how soon it comes.

- **Licence:** {LICENCE}, as Headlong. The model it drafts for: {model.licence}.
- **Learned from** {data["answers"]:,} answers ({data["answer_tokens"]:,} tokens) that this model \
wrote itself to the prompts below, on {_device(record)}; {training["steps"]:,} steps in \
{training["seconds"]:,.0f} s{earlier}. \
Every setting is in [run.json](run.json).
- **Drafts from** the {recipe["head"]["draft_vocab_size"]:,} tokens that are most frequent in \
those answers.
- **Stored in** {"4 bits, as it learned to run" if recipe["head"]["packed"] == "q4" else "float16"}.

## Acceptance length

Mean tokens a round emits, the model's own included, on prompts it has not seen.

{_describe_acceptance(record) or "Not measured."}

## Prompts

The head learned to foresee what the model answered to these; answers are those of the last round.

| set | answers | licence of the prompts |
|---|---|---|
{sets}
"""


def _describe_acceptance(record: Mapping[str, Any]) -> str:
    """Return tables of what was simulated after training, and of what was decoded."""
    parts = [
        f"Simulated, K = 1, 2, …, temperature {key.removeprefix('temperature_')}:\n\n"
        + _table(by_task)
        for key, by_task in record.get("acceptance", {}).items()
        if key.startswith("temperature_")
    ]
    decoded = record.get("decoded", {"results": []})
    for run in decoded["results"]:
        rows = (
            f"| {task} | {decoded['prompts'][task]} | {length:.2f} |"
            for task, length in run["acceptance"].items()
        )
        parts.append(
            f"Decoded, head at {run['precision']}, K = {run['k']}, temperature "
            f"{run['temperature']:g}, up to {decoded['max_tokens']} tokens:\n\n"
            "| task | prompts | acceptance length |\n|---|---|---|\n" + "\n".join(rows)
        )
    return "\n\n".join(parts)


def _table(by_task: Mapping[str, list[float]]) -> str:
    num_depths = max(len(lengths) for lengths in by_task.values())
    head = "| task | " + " | ".join(f"K = {k}" for k in range(1, num_depths + 1)) + " |"
    rows = [
        f"| {task} | " + " | ".join(f"{length:.2f}" for length in lengths) + " |"
        for task, lengths in by_task.items()
    ]
    return "\n".join([head, "|---" * (num_depths + 1) + "|", *rows])


def _device(record: Mapping[str, Any]) -> str:
    if record["device"] != "cpu":
        return f"one {record['device']}"
    machine = record["provenance"]
    return f"{machine['num_cores']} cores of an {machine['cpu']}"


def _rounds(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return this run and those it went on from, the last one first."""
    runs: list[Mapping[str, Any]] = []
    while record:
        runs.append(record)
        record = (record.get("started_from") or {}).get("run", {})
    return runs


def write_wheel(folder: Path, out: Path, part: WheelPart) -> Path:
    """Write a wheel that holds a head's folder and nothing to run."""
    stem = f"{part.package.replace('-', '_').replace('.', '_')}-{part.version}"
    info = f"{stem}.dist-info"
    files = {f"{part.member}/{name}": (folder / name).read_bytes() for name in HEAD_FILES}
    files |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {part.package}\nVersion: "
        f"{part.version}\nSummary: A head that headlong pull finds.\nLicense: {LICENCE}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: headlong\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return path


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def main() -> int:
    """Ship one head."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("head", type=Path, metavar="HEAD")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--decoded", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--wheel", action="store_true")
    args = parser.parse_args()
    if not args.wheel:
        made = (args.out or SHIPPED) / args.name
        ship(args.head, made, args.decoded)
    else:
        part = next(one.head for one in CATALOG if one.name == args.name)
        if part is None:
            sys.stderr.write(f"The catalogue names no wheel for the head of {args.name}.\n")
            return 1
        with tempfile.TemporaryDirectory() as work:
            ship(args.head, Path(work), args.decoded)
            made = write_wheel(Path(work), args.out or Path("dist"), part)
    size = sum(one.stat().st_size for one in ([made] if made.is_file() else made.iterdir()))
    sys.stdout.write(f"{made}: {size / 1e6:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
