#include "blocks.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

#include "delta_net.hpp"
#include "experts.hpp"
#include "kv_layer.hpp"
#include "latent_attention.hpp"

namespace headlong {

namespace {

void require(bool is_fine, const char* what) {
    if (!is_fine) throw std::invalid_argument(what);
}

void check_linear(const Linear& linear, int64_t outputs, int64_t inputs, const char* name) {
    require(linear.weight != nullptr, "a projection has no weights");
    const std::string problem = std::string(name) + " has the shape (" +
                                std::to_string(linear.outputs()) + ", " + std::to_string(linear.inputs()) +
                                ") instead of (" + std::to_string(outputs) + ", " +
                                std::to_string(inputs) + ") or a bias of another length";
    const auto bias = static_cast<int64_t>(linear.bias.size());
    require(linear.outputs() == outputs && linear.inputs() == inputs && (bias == 0 || bias == outputs),
            problem.c_str());
}

void check_norm(const Norm& norm, int64_t size) {
    require(static_cast<int64_t>(norm.weight.size()) == size, "a norm does not fit the rows it is for");
}

void check_kv_layer(const MixerState& state, const AttendShape& shape, const Span& span) {
    const auto* cache = dynamic_cast<const KVLayer*>(&state);
    require(cache != nullptr && cache->num_kv_heads == shape.num_kv_heads && cache->key_dim == shape.key_dim &&
                cache->value_dim == shape.value_dim,
            "a cache layer has other heads than its block");
    require(cache->capacity() >= span.first_position + span.num_rows, "a cache layer has no room for these positions");
}

}  // namespace

void Rope::reach(int64_t num_positions) {
    const int64_t known = half() == 0 ? 0 : static_cast<int64_t>(cosines_.size()) / half();
    if (num_positions <= known) return;
    const int64_t wanted = std::max(num_positions, known + 256);
    cosines_.resize(wanted * half());
    sines_.resize(wanted * half());
    for (int64_t position = known; position < wanted; ++position) {
        for (int64_t i = 0; i < half(); ++i) {
            const double angle = static_cast<double>(position) * frequencies_[i];
            cosines_[position * half() + i] = static_cast<float>(amplitude_ * std::cos(angle));
            sines_[position * half() + i] = static_cast<float>(amplitude_ * std::sin(angle));
        }
    }
}

void Attention::check() const {
    require(num_heads > 0 && num_kv_heads > 0 && num_heads % num_kv_heads == 0,
            "query heads must share key/value heads evenly");
    require(is_head_dim(head_dim), "the head size must be even, at most 4096");
    require(rope != nullptr && rope->half() >= 1 && rope->half() <= head_dim / 2,
            "rotary frequencies do not fit the head size");
    require(window >= 0, "the window must be 0 (all) or a number of positions");
    require(output.weight != nullptr, "a projection has no weights");
    const int64_t hidden = hidden_size(), inputs = beside_norm ? 2 * hidden : hidden;
    check_norm(norm, hidden);
    check_linear(query, query_size(), inputs, "the query projection");
    if (writes_keys()) {
        check_linear(key, key_size(), inputs, "the key projection");
        check_linear(value, key_size(), inputs, "the value projection");
    }
    check_linear(output, hidden, query_size(), "the output projection");
    if (gate) {
        check_linear(*gate, query_size(), inputs, "the gate projection");
        require(gate->weight->is_quantised() == query.weight->is_quantised(), "query and gate differ in their format");
    }
    if (query_norm) check_norm(*query_norm, head_dim);
    if (key_norm) check_norm(*key_norm, head_dim);
    if (value_norm) check_norm(*value_norm, head_dim);
    if (beside_norm) check_norm(*beside_norm, hidden);
    if (output_norm) check_norm(*output_norm, hidden);
}

void Attention::check_state(const MixerState& state, const Span& span) const {
    check_kv_layer(state, shape(), span);
}

void LatentAttention::check() const {
    require(num_heads > 0 && plain_dim > 0 && value_dim > 0, "latent attention needs heads with sizes above 0");
    require(rope != nullptr && rope->half() >= 1 && is_head_dim(rank()) && is_head_dim(rank() + rotary_dim()),
            "latent and rotary sizes must be even, their sum at most 4096");
    require(output.weight != nullptr, "a projection has no weights");
    const int64_t hidden = hidden_size(), heads = num_heads;
    check_norm(norm, hidden);
    require(query_down.has_value() == query_norm.has_value(), "queries of low rank need a projection and a norm");
    const int64_t low = query_norm ? static_cast<int64_t>(query_norm->weight.size()) : hidden;
    if (query_down) check_linear(*query_down, low, hidden, "the projection to queries of low rank");
    check_linear(query, heads * query_dim(), low, "the query projection");
    check_linear(latent, rank() + rotary_dim(), hidden, "the latent projection");
    check_linear(key_up, heads * rank(), plain_dim, "the keys' matrices");
    check_linear(value_up, heads * value_dim, rank(), "the values' matrices");
    check_linear(output, hidden, heads * value_dim, "the output projection");
}

void LatentAttention::check_state(const MixerState& state, const Span& span) const {
    check_kv_layer(state, shape(), span);
}

void GatedDeltaNet::check() const {
    require(shape.is_sound(), kUnsound);
    require(output.weight != nullptr, "a projection has no weights");
    const int64_t hidden = hidden_size(), num_heads = shape.num_value_heads;
    check_norm(norm, hidden);
    check_norm(head_norm, shape.value_dim);
    check_linear(mixed, shape.num_channels(), hidden, "the projection of queries, keys and values");
    check_linear(gate, value_size(), hidden, "the gate projection");
    check_linear(update, num_heads, hidden, "the update projection");
    check_linear(decay, num_heads, hidden, "the decay projection");
    check_linear(output, hidden, value_size(), "the output projection");
    require(static_cast<int64_t>(convolution.size()) == shape.conv_width * shape.num_channels() &&
                static_cast<int64_t>(decay_rate.size()) == num_heads &&
                static_cast<int64_t>(decay_bias.size()) == num_heads,
            "the convolution or the decay does not fit the heads");
}

void GatedDeltaNet::check_state(const MixerState& state, const Span& span) const {
    const auto* held = dynamic_cast<const DeltaState*>(&state);
    require(held != nullptr && held->shape == shape, "a recurrent state has another shape than its block");
    require(held->num_expected() == span.num_rows, "a recurrent state was not told of these rows");
}

void GatedMlp::check() const {
    require(mlp.down.weight != nullptr, "a projection has no weights");
    const int64_t hidden = hidden_size();
    check_norm(norm, hidden);
    mlp.check(hidden);
    if (output_norm) check_norm(*output_norm, hidden);
}

void PerLayerInput::check() const {
    require(projection.weight != nullptr, "a projection has no weights");
    check_linear(gate, projection.inputs(), hidden_size(), "the gate projection");
    check_linear(projection, hidden_size(), gate.outputs(), "the projection of what tokens bring along");
    check_norm(norm, hidden_size());
    require(first >= 0, "a part of a row cannot begin before the row");
}

void Mlp::check(int64_t size) const {
    require(down.weight != nullptr, "a projection has no weights");
    if (gate) check_linear(*gate, inner(), size, "the gate projection");
    check_linear(up, inner(), size, "the up projection");
    check_linear(down, size, inner(), "the down projection");
}

void Experts::check() const {
    require(!experts.empty(), "a mixture of experts needs experts");
    const auto num_experts = static_cast<int64_t>(experts.size());
    const int64_t hidden = hidden_size(), width = expert_size();
    const Mlp& first = experts.front();
    for (const Mlp& expert : experts) {
        expert.check(width);
        require(expert.inner() == first.inner() && expert.gate.has_value() == first.gate.has_value() &&
                    expert.activation == first.activation &&
                    expert.up.weight->is_quantised() == first.up.weight->is_quantised() &&
                    expert.first().weight->is_quantised() == first.first().weight->is_quantised() &&
                    expert.down.weight->is_quantised() == first.down.weight->is_quantised(),
                "experts of a layer differ in size or format");
    }
    check_norm(norm, hidden);
    router.check(num_experts, hidden);
    require(reduce.has_value() == expand.has_value(), "experts in a latent need a way in and a way out");
    if (reduce) check_linear(*reduce, width, hidden, "the projection into the latent");
    if (expand) check_linear(*expand, hidden, width, "the projection out of the latent");
    if (sum_norm) check_norm(*sum_norm, hidden);
    if (output_norm) check_norm(*output_norm, hidden);
    require(!shared_gate || shared != nullptr, "a gate needs the shared part that it is for");
    if (shared_gate) check_linear(*shared_gate, 1, hidden, "the gate of the shared part");
    if (shared == nullptr) return;
    shared->check();
    require(shared->hidden_size() == hidden, "the shared part differs in size");
}

void Router::check(int64_t num_experts, int64_t hidden) const {
    check_linear(linear, num_experts, hidden, "the router");
    require(!linear.weight->is_quantised(), "the router is quantised");
    if (norm) check_norm(*norm, hidden);
    require(num_groups >= 1 && num_experts % num_groups == 0 && num_chosen_groups >= 1 &&
                num_chosen_groups <= num_groups && num_chosen >= 1 &&
                num_chosen <= num_experts / num_groups * num_chosen_groups,
            "groups or the number of chosen experts do not fit the experts");
    const auto fits = [&](const std::vector<float>& numbers) {
        return numbers.empty() || static_cast<int64_t>(numbers.size()) == num_experts;
    };
    require(fits(scales) && fits(choice_bias), "scales or biases do not fit the experts");
}

}  // namespace headlong
