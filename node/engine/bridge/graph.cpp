#include "graph.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "openvino/op/constant.hpp"
#include "openvino/op/gather.hpp"
#include "openvino/op/matmul.hpp"
#include "openvino/op/parameter.hpp"
#include "openvino/pass/sdpa_to_paged_attention.hpp"

namespace skein {
namespace {

// Inputs of a PagedAttention node that are read here.
constexpr size_t KEY_CACHE_INPUT = 3;
constexpr size_t SLIDING_WINDOW_INPUT = 10;

// Operations that may stand between the output matrix and the logits; each works row by row.
const std::set<std::string> AFTER_LM_HEAD = {"Convert", "Reshape", "Squeeze", "Unsqueeze", "Add", "Multiply", "Divide", "Tanh"};

std::string join(const std::vector<std::string>& names) {
    std::string text;
    for (const auto& name : names) {
        text += (text.empty() ? "" : ", ") + name;
    }
    return text.empty() ? "none" : text;
}

// The last matrix multiplication would else compute logits for every row of a prefill.
void gather_sampled_rows(const std::shared_ptr<ov::Model>& model) {
    auto node = model->get_results().at(0)->get_input_node_shared_ptr(0);
    while (!ov::is_type<ov::op::v0::MatMul>(node)) {
        if (AFTER_LM_HEAD.count(node->get_type_name()) == 0) {
            throw std::runtime_error(std::string("the last stage's graph has ") + node->get_type_name() +
                                     " between lm_head and the logits");
        }
        node = node->get_input_node_shared_ptr(0);
    }
    const auto rows = std::make_shared<ov::op::v0::Parameter>(ov::element::i64, ov::PartialShape{-1});
    rows->set_friendly_name("sampled_tokens_indices");
    rows->output(0).get_tensor().set_names({"sampled_tokens_indices"});
    const auto axis = ov::op::v0::Constant::create(ov::element::i64, ov::Shape{}, {0});
    node->input(0).replace_source_output(std::make_shared<ov::op::v8::Gather>(node->input_value(0), rows, axis));
    model->add_parameters({rows});
}

// The pass leaves the width of hidden states open, and an RMS norm of unknown width is not fused.
void fix_hidden_width(const std::shared_ptr<ov::Model>& model, const skein_stage_spec& spec) {
    for (const auto& parameter : model->get_parameters()) {
        if (parameter->get_friendly_name() == "inputs_embeds") {
            parameter->set_partial_shape({-1, static_cast<int64_t>(spec.hidden)});
        }
    }
}

void check_inputs(const std::shared_ptr<ov::Model>& model, const skein_stage_spec& spec) {
    std::vector<std::string> found;
    for (const auto& input : model->inputs()) {
        found.push_back(input.get_any_name());
    }
    std::sort(found.begin(), found.end());
    const auto expected = expected_inputs(spec);
    if (found == expected) {
        return;
    }
    std::vector<std::string> extra, missing;
    std::set_difference(found.begin(), found.end(), expected.begin(), expected.end(), std::back_inserter(extra));
    std::set_difference(expected.begin(), expected.end(), found.begin(), found.end(), std::back_inserter(missing));
    throw std::runtime_error("the stage's graph has unexpected inputs (" + join(extra) + ") and lacks (" + join(missing) +
                             ")");
}

void check_sliding_windows(const std::shared_ptr<ov::Model>& model, const skein_stage_spec& spec) {
    for (const auto& node : model->get_ops()) {
        if (std::string(node->get_type_name()) != "PagedAttentionExtension") {
            continue;
        }
        const auto cache = node->get_input_node_shared_ptr(KEY_CACHE_INPUT)->get_friendly_name();
        const auto layer = std::stoul(cache.substr(cache.rfind('.') + 1));
        const auto constant =
            ov::as_type_ptr<ov::op::v0::Constant>(node->get_input_node_shared_ptr(SLIDING_WINDOW_INPUT));
        if (!constant) {
            throw std::runtime_error("layer " + std::to_string(layer) + " of the stage computes its sliding window");
        }
        const auto found = constant->cast_vector<int64_t>().at(0);
        const auto wanted = static_cast<int64_t>(spec.sliding_windows[layer]);
        if (found != wanted) {
            throw std::runtime_error("layer " + std::to_string(layer) + " of the stage has a sliding window of " +
                                     std::to_string(found) + " instead of " + std::to_string(wanted));
        }
    }
}

}  // namespace

std::vector<std::string> expected_inputs(const skein_stage_spec& spec) {
    std::vector<std::string> names = {spec.first ? "input_ids" : "inputs_embeds",
                                      "position_ids",
                                      "past_lens",
                                      "subsequence_begins",
                                      "block_indices",
                                      "block_indices_begins",
                                      "max_context_len",
                                      "qq_bias",
                                      "qq_bias_begins"};
    if (spec.last) {
        names.push_back("sampled_tokens_indices");
    }
    for (uint32_t layer = 0; layer < spec.layers; ++layer) {
        names.push_back("key_cache." + std::to_string(layer));
        names.push_back("value_cache." + std::to_string(layer));
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::shared_ptr<ov::Model> read_paged_graph(ov::Core& core, const skein_stage_spec& spec) {
    auto model = core.read_model(spec.xml, spec.weights);
    if (model->outputs().size() != 1) {
        throw std::runtime_error("the stage's graph has " + std::to_string(model->outputs().size()) + " outputs instead of 1");
    }
    const bool allow_qq_bias = true;
    ov::pass::SDPAToPagedAttention(false, false, false, false, false, false, allow_qq_bias).run_on_model(model);
    fix_hidden_width(model, spec);
    if (spec.last) {
        gather_sampled_rows(model);
    }
    model->validate_nodes_and_infer_types();
    check_inputs(model, spec);
    check_sliding_windows(model, spec);
    return model;
}

}  // namespace skein
