"""The CUDA backend on machines that cannot run it: each is told what is missing."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from headlong.cli.model_description import describe_model
from headlong.errors import BackendError
from headlong.ops.backends import make_ops
from headlong.ops.cuda import backend as cuda_backend
from headlong.ops.cuda.ops import CudaOps
from model_files import write_hf_folder


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a driver and a torch that was built for it."""
    monkeypatch.setattr(cuda_backend, "has_driver", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def refusal() -> str:
    """What asking for the backend says."""
    with pytest.raises(BackendError) as caught:
        make_ops("cuda")
    assert caught.value.remedy
    return str(caught.value)


def test_a_machine_without_a_driver_is_not_made_to_import_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_backend, "has_driver", lambda: False)
    monkeypatch.setattr(cuda_backend, "_why_not_with_torch", pytest.fail)
    assert "no NVIDIA driver" in refusal()


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_missing_package_is_named(
    package: str, driver: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == package else find(name, *rest)

    monkeypatch.setattr(cuda_backend, "find_spec", without)
    assert f"needs {package}" in refusal()
    assert "headlong[cuda]" in refusal()


def test_a_torch_without_cuda_is_named(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert f"torch {torch.__version__} was built without CUDA" in refusal()


def test_what_the_driver_says_is_passed_on(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found 11040).\nMore.")

    monkeypatch.setattr(torch.cuda, "init", too_old)
    assert "too old (found 11040)." in refusal()
    assert "More" not in refusal()


def test_a_card_without_bfloat16_is_refused(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    assert "Tesla T4 has compute capability 7.5; 8.0 or newer" in refusal()


@pytest.mark.skipif(cuda_backend.has_driver(), reason="there is a driver")
def test_this_machine_is_told_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    from headlong.cli.main import main

    assert main(["bench", "pass", "--backend", "cuda"]) != 0
    assert "no NVIDIA driver" in capsys.readouterr().err


def test_inspect_names_what_is_not_fast(tmp_path: Path) -> None:
    ops = CudaOps(torch.device("cpu"))
    golden = Path(__file__).parents[2] / "golden"
    hybrid = describe_model(golden / "tiny-qwen3_next" / "converted.gguf", ops)
    assert "many times slower than whole rounds, as layer 0 is a GatedDeltaNet" in (
        hybrid.backend_note
    )
    assert describe_model(write_hf_folder(tmp_path, "llama"), ops).backend_note == ops.note
