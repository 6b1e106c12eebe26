// Turns a stage's stateful graph into the paged one that runs, and refuses any surprise in it.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bridge.h"
#include "openvino/openvino.hpp"

namespace skein {

// Reads the graph, runs the paged-attention pass, adds the gather of sampled rows to a last stage,
// and checks inputs and sliding windows. Throws std::runtime_error with a sentence.
std::shared_ptr<ov::Model> read_paged_graph(ov::Core& core, const skein_stage_spec& spec);

// The names of the inputs that read_paged_graph accepts, sorted.
std::vector<std::string> expected_inputs(const skein_stage_spec& spec);

}  // namespace skein
