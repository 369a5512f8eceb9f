"""Heads that come with Headlong, or were pulled, found by the model they were trained for."""

from pathlib import Path

from headlong.errors import CheckpointError, HeadError
from headlong.heads.fingerprint import fingerprint
from headlong.models.transformer import Backbone
from headlong.weights.head_folders import list_head_folders, read_run


def find_shipped_head(backbone: Backbone) -> Path | None:
    """Return the folder of the head that was trained for this very backbone, if there is one."""
    own = fingerprint(backbone)
    for folder in list_head_folders():
        try:
            run = read_run(folder)
        except CheckpointError as error:
            raise HeadError(error.problem, error.remedy) from error
        if run.get("backbone_fingerprint") == own:
            return folder
    return None
