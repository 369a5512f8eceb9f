"""Headlong and a model for a machine without a network, in parts of a bounded size.

    python bench/offline.py pack FOLDER MODEL.gguf [--python 3.12] [--parts 26,33,33]
    python bench/offline.py unpack FOLDER TARGET

`pack` needs a network: it fetches the packages that Headlong depends on, for a Linux machine with
another Python, without numpy, which comes with torch there; and cuts the compressed model into
parts of so many megabytes. `unpack` may be called again as parts arrive: TARGET/py is for
PYTHONPATH, and the model lies in TARGET once its last part is there. Only Python is needed there.
"""

import argparse
import hashlib
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES, LIST = "packages.tar.xz", "parts.json"
GLIBC = (17, 28, 31, 34)
LEFT_OUT = ("numpy-", "hf_xet-", "opentelemetry")
"""What is there with torch, and what nothing here imports."""


def main() -> int:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    packs = verbs.add_parser("pack")
    packs.add_argument("folder", type=Path)
    packs.add_argument("model", type=Path)
    packs.add_argument("--python", default="3.12")
    packs.add_argument("--parts", default="26,33,33", help="megabytes of the parts of the model")
    unpacks = verbs.add_parser("unpack")
    unpacks.add_argument("folder", type=Path)
    unpacks.add_argument("target", type=Path)
    args = parser.parse_args()
    if args.verb == "unpack":
        return unpack(args.folder, args.target)
    args.folder.mkdir(parents=True, exist_ok=True)
    pack_packages(args.folder / PACKAGES, args.python)
    cut_model(args.model, args.folder, [int(size) * 10**6 for size in args.parts.split(",")])
    for path in sorted(args.folder.iterdir()):
        sys.stdout.write(f"{path.stat().st_size / 1e6:8.1f} MB  {path}\n")
    return 0


def pack_packages(path: Path, python: str) -> None:
    """Fetch the packages for another machine, and write their files as one archive."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    told = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
        told += ["--abi", abi]
    for version in GLIBC:
        told += ["--platform", f"manylinux_2_{version}_x86_64"]
    told += ["--platform", "manylinux2014_x86_64"]
    with tempfile.TemporaryDirectory() as folder:
        wheels, files = Path(folder) / "wheels", Path(folder) / "py"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheels)]
        subprocess.run([*command, *told, *project["dependencies"]], check=True)
        kept = [one for one in wheels.glob("*.whl") if not one.name.startswith(LEFT_OUT)]
        for wheel in sorted(kept):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(files)
        with tarfile.open(path, "w:xz") as archive:
            archive.add(files, "py")


def cut_model(model: Path, folder: Path, sizes: list[int]) -> None:
    """Write the compressed model in parts, and what they are parts of."""
    data = model.read_bytes()
    packed = lzma.compress(data, preset=1)
    names, first = [], 0
    while first < len(packed):
        size = sizes[min(len(names), len(sizes) - 1)]
        names.append(f"model.{len(names)}")
        (folder / names[-1]).write_bytes(packed[first : first + size])
        first += size
    told = {"name": model.name, "parts": names, "sha256": hashlib.sha256(data).hexdigest()}
    (folder / LIST).write_text(json.dumps(told) + "\n", encoding="utf-8")


def unpack(folder: Path, target: Path) -> int:
    """Unpack what has arrived; parts are kept in the target until the last one is there."""
    target.mkdir(parents=True, exist_ok=True)
    if (folder / PACKAGES).exists() and not (target / "py").exists():
        with tarfile.open(folder / PACKAGES) as archive:
            archive.extractall(target, filter="data")
    if (folder / LIST).exists():
        shutil.copy(folder / LIST, target)
    for part in folder.glob("model.*"):
        shutil.copy(part, target)
    if not (target / LIST).exists():
        return 0
    told = json.loads((target / LIST).read_text("utf-8"))
    missing = [name for name in told["parts"] if not (target / name).exists()]
    model = target / told["name"]
    if not missing and not model.exists():
        data = lzma.decompress(b"".join((target / name).read_bytes() for name in told["parts"]))
        if hashlib.sha256(data).hexdigest() != told["sha256"]:
            raise SystemExit("The model's parts do not make the file that was cut.")
        model.write_bytes(data)
    sys.stdout.write(f"{target}: {model.name} {'lacks ' + ', '.join(missing) if missing else ''}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
