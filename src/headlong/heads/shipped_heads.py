"""Heads that come with Headlong, or were pulled, found by the model they were trained for."""

from pathlib import Path

from headlong.errors import CheckpointError, HeadError
from headlong.heads.fingerprint import fingerprint
from headlong.models.transformer import Backbone
from headlong.weights.head_folders import MAX_RUN_BYTES, RUN_FILE, list_head_folders
from headlong.weights.mapped_file import read_json_object


def find_shipped_head(backbone: Backbone) -> Path | None:
    """Return the folder of the head that was trained for this very backbone, if there is one."""
    own = fingerprint(backbone)
    for folder in list_head_folders():
        try:
            run = read_json_object(folder / RUN_FILE, MAX_RUN_BYTES)
        except CheckpointError as error:
            raise HeadError(error.problem, f"Remove {folder}, and pull the head again.") from error
        if run.get("backbone_fingerprint") == own:
            return folder
    return None
