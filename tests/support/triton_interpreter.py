"""Triton's interpreter: kernels on the CPU, in a process of their own.

Kernels are interpreted where TRITON_INTERPRET is set as they are imported.
"""

import os
import subprocess
import sys
from typing import Any


def interpreted(module: str) -> None:
    """Run a module's `main` in a process where kernels are interpreted; raise if it fails."""
    code = f"import triton_interpreter; triton_interpreter.settle(); import {module} as m; m.main()"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=200)


def settle() -> None:
    """Let loop bounds be tensors of one element, which numpy 2.4 refuses to turn into integers."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
