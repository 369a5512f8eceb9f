// Fills a kernel table from the templates; included once per instruction set, in a file compiled
// with that set's flags. Everything it instantiates is named after `Dot`, so nothing compiled for a
// newer processor can be linked into the path of an older one.
#pragma once

#include "attend.hpp"
#include "recurrent_steps.hpp"
#include "kernels.hpp"
#include "matmul.hpp"
#include "pick_steps.hpp"
#include "row_steps.hpp"

namespace headlong {

template <class Dot>
constexpr Kernels make_kernels(const char* name) {
    using V = typename Dot::V;
    return Kernels{
        .name = name,
        .width = V::W,
        .tile_width = V::W * Dot::kTileVectors,
        .has_unsigned_q8 = Dot::kUnsignedQ8,
        .matmul = matmul<Dot>,
        .rms_norm = rms_norm<V>,
        .quantise = quantise<V>,
        .rotate = rotate<V>,
        .activate = activate<V>,
        .add_silu = add_silu<V>,
        .add = add<V>,
        .add_scaled = add_scaled<V>,
        .shorten = shorten<V>,
        .argmax = argmax<V>,
        .noise_bits = noise_bits<V>,
        .any_reaches = any_reaches<V>,
        .sum_relative = sum_relative<V>,
        .sum_relative_exactly = sum_relative_exactly<V>,
        .block_maxima = block_maxima<V>,
        .attend = attend<V>,
        .merge = merge<V>,
        .finish = finish<V>,
        .convolve = convolve<V>,
        .multiply_gate = multiply_gate<V>,
        .recurrent_rows = recurrent_rows<V>,
        .read = read_all<V>,
    };
}

}  // namespace headlong
