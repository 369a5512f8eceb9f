// Binding of whole passes: a stack of layers is one call from Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"

namespace headlong {

namespace {

using SpanTuple = std::tuple<int64_t, int64_t, int64_t>;
using States = std::vector<MixerStates>;

// A stack of layers, checked when it is made.
struct Stack {
    std::vector<Layer> layers;
    int64_t hidden_size = 0;
    int64_t beside_size = 0;  // numbers that rows beside x have at least; 0 where none are read
    bool reads_beside_whole = false;  // by a mixer, which puts them beside x number by number
};

Stack make_stack(std::vector<Layer> layers) {
    Stack stack;
    require(!layers.empty(), "a stack needs at least one layer");
    for (const Layer& layer : layers) {
        require(layer.mixer != nullptr || layer.channel != nullptr, "a layer needs at least one block");
        if (layer.mixer != nullptr) layer.mixer->check();
        const int64_t size = layer.hidden_size();
        for (const Channel* part : {layer.channel.get(), layer.second.get()}) {
            if (part == nullptr) continue;
            part->check();
            require(part->hidden_size() == size, "blocks of a layer differ in size");
            stack.beside_size = std::max(stack.beside_size, part->reads_up_to());
        }
        require(stack.hidden_size == 0 || stack.hidden_size == size, "layers differ in size");
        stack.hidden_size = size;
        if (layer.mixer != nullptr && layer.mixer->reads_beside()) {
            stack.beside_size = std::max(stack.beside_size, size);
            stack.reads_beside_whole = true;
        }
    }
    stack.layers = std::move(layers);
    return stack;
}

std::vector<Span> read_spans(const std::vector<SpanTuple>& tuples, int64_t num_rows) {
    std::vector<Span> spans;
    int64_t next_row = 0;
    for (const auto& [first_row, count, position] : tuples) {
        require(first_row == next_row && count >= 1, "spans must follow one another and hold rows");
        require(position >= 0 && position <= kMaxPositions - count, "a position is negative or beyond 2**24");
        spans.push_back({first_row, count, position});
        require(count <= num_rows - next_row, "spans hold more rows than there are");
        next_row += count;
    }
    require(next_row == num_rows, "spans hold fewer rows than there are");
    return spans;
}

// caches[s] holds the states of all layers of span s; the engine wants them layer by layer.
States by_layer(const Stack& stack, const States& caches, const std::vector<Span>& spans) {
    const size_t num_layers = stack.layers.size();
    States turned(num_layers);
    require(caches.size() == spans.size(), "there must be one cache per span");
    for (size_t s = 0; s < spans.size(); ++s) {
        require(caches[s].size() == num_layers, "a cache has another number of layers");
        for (size_t l = 0; l < num_layers; ++l) {
            const Mixer* mixer = stack.layers[l].mixer.get();
            MixerState* cache = caches[s][l];
            require(mixer == nullptr || cache != nullptr, "a cache layer is missing");
            if (mixer != nullptr) mixer->check_state(*cache, spans[s]);
            for (size_t other = 0; other < s && mixer != nullptr; ++other) {
                require(caches[other][l] != cache, "two spans write to the same cache");
            }
            turned[l].push_back(cache);
        }
    }
    return turned;
}

PassInput read_input(
    const Stack& stack, const Rows& x, const std::vector<SpanTuple>& tuples, const std::optional<Input>& beside) {
    const auto num_rows = static_cast<int64_t>(x.shape(0)), size = stack.hidden_size;
    require(num_rows >= 1 && int64_t(x.shape(1)) == size, "rows do not fit the layers");
    require((stack.beside_size > 0) == beside.has_value(), "rows to put beside x are missing, or not read by any layer");
    require(!beside || (int64_t(beside->shape(0)) == num_rows && int64_t(beside->shape(1)) >= stack.beside_size),
            "rows beside x have another shape");
    require(!stack.reads_beside_whole || int64_t(beside->shape(1)) == size, "rows beside x have another size than x");
    return {x.data(), num_rows, read_spans(tuples, num_rows), beside ? beside->data() : nullptr,
            beside ? int64_t(beside->shape(1)) : 0};
}

void run_last(Engine& self, const Stack& stack, Rows x, const std::vector<SpanTuple>& tuples, const States& caches,
              std::optional<Input> beside, Rows y) {
    const PassInput input = read_input(stack, x, tuples, beside);
    require(stack.layers.size() == 1 && stack.layers[0].mixer != nullptr, "one layer with a mixer is run at a time");
    require(y.shape(0) == input.spans.size() && int64_t(y.shape(1)) == stack.hidden_size,
            "the buffer for last rows has another shape");
    const States turned = by_layer(stack, caches, input.spans);
    const Turn turn(self);
    self.run_last(input, stack.layers[0], turned[0], y.data());
}

void run(Engine& self, const Stack& stack, Rows x, const std::vector<SpanTuple>& tuples, const States& caches,
         const std::vector<int64_t>& tap_layers, std::optional<Rows> taps, std::optional<Input> beside) {
    const PassInput input = read_input(stack, x, tuples, beside);
    const int64_t num_rows = input.num_rows, size = stack.hidden_size;
    const States turned = by_layer(stack, caches, input.spans);
    const auto num_taps = static_cast<int64_t>(tap_layers.size());
    require(num_taps == 0 || (taps && int64_t(taps->shape(0)) == num_rows &&
                              int64_t(taps->shape(1)) == num_taps * size),
            "the buffer for taps has another shape");
    std::vector<float*> places(stack.layers.size(), nullptr);
    for (int64_t t = 0; t < num_taps; ++t) {
        require(tap_layers[t] >= 0 && tap_layers[t] < int64_t(places.size()), "a tapped layer does not exist");
        require(places[tap_layers[t]] == nullptr, "a layer is tapped twice");
        places[tap_layers[t]] = taps->data() + t * size;
    }
    const Turn turn(self);
    self.run_layers(input, stack.layers, turned, places, num_taps * size);
}

}  // namespace

void bind_pass(nb::module_& module, nb::class_<Engine>& engine) {
    nb::class_<Stack>(module, "Stack")
        .def("__init__", [](Stack* stack, nb::list blocks) {
            std::vector<Layer> layers;
            for (nb::handle item : blocks) {
                const auto parts = nb::cast<nb::tuple>(item);
                layers.push_back({nb::cast<std::shared_ptr<Mixer>>(parts[0]),
                                  nb::cast<std::shared_ptr<Channel>>(parts[1]),
                                  nb::cast<std::shared_ptr<Channel>>(parts[2]), nb::cast<float>(parts[3])});
            }
            new (stack) Stack(make_stack(std::move(layers)));
        }, nb::arg("blocks"));
    engine.def("run", &run, nb::arg("stack"), nb::arg("x").noconvert(), nb::arg("spans"), nb::arg("caches"),
               nb::arg("tap_layers"), nb::arg("taps").noconvert().none(), nb::arg("beside").none());
    engine.def("run_last", &run_last, nb::arg("stack"), nb::arg("x").noconvert(), nb::arg("spans"), nb::arg("caches"),
               nb::arg("beside").none(), nb::arg("y").noconvert());
}

}  // namespace headlong
