"""The teacher is the backbone of `models/`; what cannot be taught from yet is refused by name."""

from pathlib import Path

import pytest
import torch

from headlong.errors import ArchitectureError
from headlong.train.teacher import load_teacher
from headlong.weights.checkpoint import open_checkpoint
from model_files import HYBRID, write_hf_folder


def test_models_with_recurrent_layers_are_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_hf_folder(tmp_path, HYBRID))
    with pytest.raises(ArchitectureError, match="recurrent"):
        load_teacher(checkpoint, torch.device("cpu"), compile=False)
