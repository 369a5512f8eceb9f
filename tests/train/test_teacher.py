"""The teacher is the backbone of `models/`; what cannot be taught from yet is refused by name."""

from pathlib import Path

import pytest
import torch

from headlong.errors import ArchitectureError
from headlong.train.teacher import load_teacher
from headlong.weights.checkpoint import open_checkpoint
from model_files import HYBRID, MIXTURE, write_hf_folder


@pytest.mark.parametrize(("name", "reason"), [(HYBRID, "recurrent"), (MIXTURE, "experts")])
def test_models_of_other_layers_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    checkpoint = open_checkpoint(write_hf_folder(tmp_path, name))
    with pytest.raises(ArchitectureError, match=reason):
        load_teacher(checkpoint, torch.device("cpu"), compile=False)
