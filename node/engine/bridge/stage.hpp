// One compiled stage with its KV cache and the tensors of a step.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bridge.h"
#include "cache.hpp"
#include "openvino/openvino.hpp"

namespace skein {

class Stage {
public:
    Stage(ov::Core& core, const skein_stage_spec& spec);

    float* hidden_input(size_t rows);
    const float* step(const skein_step& step);
    const std::string& report() const {
        return m_report;
    }

private:
    // A tensor of one dimension that is filled for every step and keeps its memory.
    struct Input {
        ov::Output<const ov::Node> port;
        ov::Tensor tensor;

        template <typename T>
        T* resize(size_t count) {
            tensor.set_shape({count});
            return count == 0 ? nullptr : tensor.data<T>();
        }
        template <typename T>
        void assign(const T* values, size_t count);
    };

    void bind(const skein_step& step);
    void bind_blocks(const skein_step& step);

    bool m_first, m_last;
    size_t m_hidden, m_vocab, m_block_slots;
    ov::CompiledModel m_compiled;
    // Outlives the request, which reads and writes its memory.
    std::unique_ptr<Cache> m_cache;
    ov::InferRequest m_request;
    Input m_token_ids, m_embeds, m_positions, m_past_lens, m_begins, m_blocks, m_block_begins, m_context, m_bias,
        m_bias_begins, m_sampled;
    std::string m_report;
};

// What the compiled graph became; see report.cpp.
std::string make_report(const ov::CompiledModel& compiled, const Cache& cache, double compile_ms);

}  // namespace skein
