"""Triton's interpreter, for kernels on the CPU: import this before any kernel.

Kernels are interpreted where TRITON_INTERPRET is set as they are imported, so tests of them run in
a process of their own (`interpreted`).
"""

import os
import subprocess
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"


def interpreted(module: str) -> None:
    """Run a module's `main` in a process where kernels are interpreted; raise if it fails."""
    code = f"import triton_interpreter; triton_interpreter.settle(); import {module} as m; m.main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=200)


def settle() -> None:
    """Let loop bounds be tensors of one element, which numpy 2.4 refuses to turn into integers."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
