// The report: one line a fact, fields separated by tabs.
//
//   compile_ms    MILLISECONDS
//   kv_bytes      BYTES
//   kv_type       KEY_TYPE      VALUE_TYPE
//   block_slots   SLOTS                        of one block of the device
//   input         NAME
//   op            TYPE          COUNT          of the graph that runs
//   weight        ELEMENT_TYPE  COUNT          constants that a matrix multiplication or lookup reads
//   property      NAME          VALUE          as the device applied it

#include <map>
#include <set>
#include <sstream>

#include "stage.hpp"

namespace skein {
namespace {

// Properties that change numbers or speed.
const char* const REPORTED[] = {"INFERENCE_PRECISION_HINT",
                                "KV_CACHE_PRECISION",
                                "DYNAMIC_QUANTIZATION_GROUP_SIZE",
                                "INFERENCE_NUM_THREADS",
                                "NUM_STREAMS",
                                "EXECUTION_MODE_HINT",
                                "ENABLE_CPU_PINNING"};

std::string info(const ov::Node& node, const char* key) {
    const auto& map = node.get_rt_info();
    const auto found = map.find(key);
    return found == map.end() ? std::string() : found->second.as<std::string>();
}

// The node as the device runs it, not as the graph had it.
std::string executed_type(const ov::Node& node) {
    const auto type = info(node, "layerType");
    return type.empty() ? node.get_type_name() : type;
}

}  // namespace

std::string make_report(const ov::CompiledModel& compiled, const Cache& cache, double compile_ms) {
    std::ostringstream out;
    out << "compile_ms\t" << static_cast<uint64_t>(compile_ms) << "\nkv_bytes\t" << cache.bytes() << "\nkv_type\t"
        << cache.key_type().get_type_name() << '\t' << cache.value_type().get_type_name() << "\nblock_slots\t"
        << cache.device_block_slots() << '\n';
    for (const auto& input : compiled.inputs()) {
        out << "input\t" << input.get_any_name() << '\n';
    }
    std::map<std::string, size_t> ops, weights;
    const std::set<std::string> readers = {"FullyConnected", "MatMul", "Gather"};
    for (const auto& node : compiled.get_runtime_model()->get_ordered_ops()) {
        const auto type = executed_type(*node);
        ++ops[type];
        if (readers.count(type) == 0) {
            continue;
        }
        for (size_t i = 0; i < std::min<size_t>(node->get_input_size(), 2); ++i) {
            const auto source = node->get_input_node_shared_ptr(i);
            const auto shape = source->get_output_partial_shape(0);
            if (executed_type(*source) == "Const" && shape.rank().is_static() && shape.size() >= 2) {
                ++weights[info(*source, "outputPrecisions")];
            }
        }
    }
    for (const auto& [type, count] : ops) {
        out << "op\t" << type << '\t' << count << '\n';
    }
    for (const auto& [type, count] : weights) {
        out << "weight\t" << type << '\t' << count << '\n';
    }
    for (const auto* name : REPORTED) {
        try {
            out << "property\t" << name << '\t' << compiled.get_property(name).as<std::string>() << '\n';
        } catch (const std::exception&) {
            // A device need not know every one of them.
        }
    }
    return out.str();
}

}  // namespace skein
