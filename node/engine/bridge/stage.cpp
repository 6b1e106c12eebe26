#include "stage.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "graph.hpp"

namespace skein {
namespace {

ov::CompiledModel compile(ov::Core& core, const skein_stage_spec& spec) {
    auto model = read_paged_graph(core, spec);
    ov::AnyMap properties;
    for (size_t i = 0; i < spec.property_count; ++i) {
        properties[spec.properties[i].key] = std::string(spec.properties[i].value);
    }
    return core.compile_model(model, spec.device, properties);
}

}  // namespace

Stage::Stage(ov::Core& core, const skein_stage_spec& spec)
    : m_first(spec.first != 0),
      m_last(spec.last != 0),
      m_hidden(spec.hidden),
      m_vocab(spec.vocab),
      m_block_slots(spec.block_slots) {
    const auto start = std::chrono::steady_clock::now();
    m_compiled = compile(core, spec);
    const std::chrono::duration<double, std::milli> compile_time = std::chrono::steady_clock::now() - start;
    m_request = m_compiled.create_infer_request();
    m_cache = std::make_unique<Cache>(core, m_compiled, m_request, spec);

    const auto input = [&](const char* name, ov::element::Type type, ov::Shape shape) {
        return Input{m_compiled.input(name), ov::Tensor(type, shape)};
    };
    if (m_first) {
        m_token_ids = input("input_ids", ov::element::i64, {0});
    } else {
        m_embeds = input("inputs_embeds", ov::element::f32, {0, m_hidden});
    }
    m_positions = input("position_ids", ov::element::i64, {0});
    m_past_lens = input("past_lens", ov::element::i32, {0});
    m_begins = input("subsequence_begins", ov::element::i32, {0});
    m_blocks = input("block_indices", ov::element::i32, {0});
    m_block_begins = input("block_indices_begins", ov::element::i32, {0});
    m_context = input("max_context_len", ov::element::i32, {});
    m_bias = input("qq_bias", ov::element::u8, {0});
    m_bias_begins = input("qq_bias_begins", ov::element::i32, {0});
    if (m_last) {
        m_sampled = input("sampled_tokens_indices", ov::element::i64, {0});
    }
    m_report = make_report(m_compiled, *m_cache, compile_time.count());
}

float* Stage::hidden_input(size_t rows) {
    if (m_first) {
        throw std::runtime_error("a first stage takes token ids, not hidden states");
    }
    m_embeds.tensor.set_shape({rows, m_hidden});
    return m_embeds.tensor.data<float>();
}

template <typename T>
void Stage::Input::assign(const T* values, size_t count) {
    if (auto* target = resize<T>(count)) {
        std::memcpy(target, values, count * sizeof(T));
    }
}

// The caller's blocks are logical; the device gets the blocks of its own size that the context
// reaches into, and no more.
void Stage::bind_blocks(const skein_step& step) {
    const auto ratio = m_cache->device_blocks();
    const auto slots = m_cache->device_block_slots();
    const auto needed = [&](size_t sequence) {
        const auto rows = step.subsequence_begins[sequence + 1] - step.subsequence_begins[sequence];
        return (static_cast<size_t>(step.past_lens[sequence] + rows) + slots - 1) / slots;
    };
    auto* begins = m_block_begins.resize<int32_t>(step.sequences + 1);
    begins[0] = 0;
    for (size_t i = 0; i < step.sequences; ++i) {
        begins[i + 1] = begins[i] + static_cast<int32_t>(needed(i));
    }
    auto* blocks = m_blocks.resize<int32_t>(static_cast<size_t>(begins[step.sequences]));
    for (size_t i = 0; i < step.sequences; ++i) {
        const auto* logical = step.block_indices + step.block_indices_begins[i];
        const auto count = needed(i);
        for (size_t j = 0; j < count; ++j) {
            *blocks++ = logical[j / ratio] * static_cast<int32_t>(ratio) + static_cast<int32_t>(j % ratio);
        }
    }
}

void Stage::bind(const skein_step& step) {
    if (m_first) {
        m_token_ids.assign(step.token_ids, step.rows);
    } else if (m_embeds.tensor.get_shape()[0] != step.rows) {
        throw std::runtime_error("hidden states were given for another number of rows");
    }
    m_positions.assign(step.position_ids, step.rows);
    m_past_lens.assign(step.past_lens, step.sequences);
    m_begins.assign(step.subsequence_begins, step.sequences + 1);
    bind_blocks(step);
    m_context.tensor.data<int32_t>()[0] = step.max_context_len;
    m_bias.assign(step.qq_bias, step.qq_bias_size);
    m_bias_begins.assign(step.qq_bias_begins, step.qq_bias_begins_size);
    if (m_last) {
        // The graph wants a row even when nobody samples one; the caller takes no output then.
        const int64_t none = 0;
        m_sampled.assign(step.sampled == 0 ? &none : step.sampled_rows, step.sampled == 0 ? 1 : step.sampled);
    }
    for (auto* input : {&m_token_ids,
                        &m_embeds,
                        &m_positions,
                        &m_past_lens,
                        &m_begins,
                        &m_blocks,
                        &m_block_begins,
                        &m_context,
                        &m_bias,
                        &m_bias_begins,
                        &m_sampled}) {
        if (input->tensor) {
            m_request.set_tensor(input->port, input->tensor);
        }
    }
}

const float* Stage::step(const skein_step& step) {
    m_cache->move(step.moves, step.move_count);
    bind(step);
    m_request.infer();
    const auto output = m_request.get_output_tensor(0);
    const auto rows = m_last ? std::max<size_t>(step.sampled, 1) : step.rows;
    const auto width = m_last ? m_vocab : m_hidden;
    if (output.get_element_type() != ov::element::f32 || output.get_size() != rows * width) {
        throw std::runtime_error("the stage returned " + std::to_string(output.get_size()) + " values of type " +
                                 output.get_element_type().get_type_name() + " instead of " +
                                 std::to_string(rows * width) + " of type f32");
    }
    return output.data<float>();
}

}  // namespace skein
