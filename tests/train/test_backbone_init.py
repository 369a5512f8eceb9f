"""A new head copies the last parts of its backbone that fit, whatever layers follow."""

import numpy as np
import torch

from headlong.ops.blocks import Attention
from headlong.train.backbone_init import init_from_backbone
from headlong.train.chain_layer import ChainLayer
from headlong.train.chains import Chains
from headlong.train.teacher import Teacher


def new_layer(teacher: Teacher) -> ChainLayer:
    """A layer of a nextn head."""
    torch.manual_seed(0)
    return ChainLayer(teacher, teacher.config.intermediate_size, with_embedding=False)


def test_attention_is_copied_from_the_last_layer_that_fits(every_teacher: Teacher) -> None:
    layer, layers = new_layer(every_teacher), every_teacher.backbone.layers
    rows = layer.self_attn.q_proj.out_features, layer.self_attn.v_proj.out_features
    fitting = [
        one.mixer
        for one in layers
        if isinstance(one.mixer, Attention)
        and (one.mixer.query.weight.num_outputs, one.mixer.value.weight.num_outputs) == rows
    ]
    init_from_backbone(layer, layers)
    if fitting:
        assert torch.equal(layer.self_attn.q_proj.weight, fitting[-1].query.weight.values)
    else:
        assert not layer.self_attn.o_proj.weight.any()


def test_a_part_without_a_source_adds_nothing(tiny_teacher: Teacher) -> None:
    layer = new_layer(tiny_teacher)
    init_from_backbone(layer, ())
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 64), np.float32))
    rope = tiny_teacher.backbone.layers[0].attention.rope
    assert torch.equal(layer(x, Chains(1, 5, tiny_teacher.ops, tiny_teacher.pointwise, rope)), x)
