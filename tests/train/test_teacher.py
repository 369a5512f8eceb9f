"""The teacher is the backbone of `models/`; what cannot be taught from yet is refused by name."""

from pathlib import Path

import pytest
import torch

from headlong.errors import ArchitectureError
from headlong.train.teacher import load_teacher
from headlong.weights.checkpoint import open_checkpoint
from model_files import GEMMA4, HYBRID, MIXTURE, write_hf_folder


@pytest.mark.parametrize("architecture", [HYBRID, GEMMA4, MIXTURE])
def test_models_with_other_layers_are_refused(tmp_path: Path, architecture: str) -> None:
    checkpoint = open_checkpoint(write_hf_folder(tmp_path, architecture))
    with pytest.raises(ArchitectureError, match=f"{architecture} models cannot be trained"):
        load_teacher(checkpoint, torch.device("cpu"), compile=False)
