"""Which head was measured: a name that goes with results to another machine.

In:  a loaded model, and the folder of the head that was named, if one was.
Out: the folder's name with the beginning of a hash over it: two heads of one name are told apart,
     and nothing is told of the machine they lie on.
"""

import hashlib
from pathlib import Path

from headlong.heads.head_files import CONFIG_FILE
from headlong.heads.shipped_heads import find_shipped_head
from headlong.llm import LLM


def name_head(llm: LLM, given: Path | None) -> str:
    """Name the head that drafts for a model."""
    if llm.head is None:
        return "none"
    is_native = given is None and llm.report.head_tensors
    folder = None if is_native else given or find_shipped_head(llm.backbone)
    if folder is None:
        return "the model's own"
    folder = (folder if folder.is_dir() else folder.parent).resolve()
    files = [folder / CONFIG_FILE, *sorted(folder.glob("*.safetensors"))]
    content = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    return f"{folder.name} ({content.hexdigest()[:10]})"
