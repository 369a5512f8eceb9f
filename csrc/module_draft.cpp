// Binding of whole drafts.
#include <algorithm>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "draft.hpp"

namespace headlong {

namespace {

using RequestTuple = std::tuple<MixerState*, int64_t, int64_t, double, const Calibration*, const PickRule*, int64_t>;
using Result = std::tuple<std::vector<int64_t>, std::vector<double>, bool>;

std::vector<DraftRequest> read_requests(const DraftHead& head, const std::vector<RequestTuple>& given) {
    std::vector<DraftRequest> requests;
    for (const auto& [cache, position, num_tokens, threshold, calibration, rule, token_position] : given) {
        require(cache != nullptr && rule != nullptr, "a request lacks its cache or its rule");
        require(num_tokens >= 1 && position >= 0 && position <= kMaxPositions - num_tokens && token_position >= 0,
                "a draft needs at least one token, at a position from 0 to 2**24");
        head.layers[0].mixer->check_state(*cache, {0, num_tokens - 1, position});
        for (const DraftRequest& other : requests) require(other.cache != cache, "two drafts write to the same cache");
        requests.push_back({cache, position, num_tokens, threshold, calibration, *rule, token_position});
    }
    return requests;
}

}  // namespace

void bind_draft(nb::module_& module, nb::class_<Engine>& engine) {
    nb::class_<Calibration>(module, "Calibration")
        .def("__init__", [](Calibration* calibration, std::vector<double> edges, std::vector<double> chances) {
            require(chances.size() == edges.size() + 1, "chances are one more than the edges between them");
            require(std::is_sorted(edges.begin(), edges.end()), "edges between probabilities must ascend");
            new (calibration) Calibration{std::move(edges), std::move(chances)};
        }, nb::arg("edges"), nb::arg("chances"));
    nb::class_<Fusion>(module, "Fusion")
        .def("__init__", [](Fusion* fusion, const Norm& embedding_norm, const Norm& state_norm, const Linear& fc,
                            bool is_state_first) {
            new (fusion) Fusion{embedding_norm, state_norm, fc, is_state_first};
        }, nb::arg("embedding_norm"), nb::arg("state_norm"), nb::arg("fc"), nb::arg("is_state_first"));
    nb::class_<DraftHead>(module, "DraftHead")
        .def("__init__", [](DraftHead* made, std::shared_ptr<Matrix> embedding, float embedding_scale,
                            std::shared_ptr<Mixer> mixer, std::shared_ptr<Channel> channel,
                            std::optional<Fusion> fusion, const Norm& norm, const Linear& lm_head,
                            bool carries_normed, float logit_cap, std::optional<Ids> vocabulary) {
            DraftHead head{std::move(embedding), embedding_scale, {{std::move(mixer), std::move(channel)}},
                           std::move(fusion), norm, lm_head, carries_normed, logit_cap, {}};
            if (vocabulary) head.vocabulary.assign(vocabulary->data(), vocabulary->data() + vocabulary->shape(0));
            head.check();
            new (made) DraftHead(std::move(head));
        }, nb::arg("embedding"), nb::arg("embedding_scale"), nb::arg("mixer"), nb::arg("channel"),
           nb::arg("fusion").none(), nb::arg("norm"), nb::arg("lm_head"), nb::arg("carries_normed"),
           nb::arg("logit_cap"), nb::arg("vocabulary").none());
    engine.def("draft", [](Engine& self, const DraftHead& head, Rows states, const std::vector<RequestTuple>& given) {
        require(states.shape(0) == given.size() && int64_t(states.shape(1)) == head.hidden_size() && !given.empty(),
                "states do not fit the head or the requests");
        std::vector<DraftRequest> requests = read_requests(head, given);
        std::vector<Drafted> drafted;
        {
            const Turn turn(self);
            drafted = run_draft(self, head, std::move(requests), states.data());
        }
        std::vector<Result> results;
        for (Drafted& draft : drafted) {
            results.emplace_back(std::move(draft.token_ids), std::move(draft.probs), draft.is_broken);
        }
        return results;
    }, nb::arg("head"), nb::arg("states").noconvert(), nb::arg("requests"));
}

}  // namespace headlong
