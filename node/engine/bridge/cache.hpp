// The keys and values of one stage: one pair of tensors a layer, owned here for the stage's life.

#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "bridge.h"
#include "openvino/openvino.hpp"

namespace skein {

class Cache {
public:
    // Allocates zeroed tensors in the device's own block size, type and layout, and binds them.
    Cache(ov::Core& core, ov::CompiledModel& compiled, ov::InferRequest& request, const skein_stage_spec& spec);

    // Copies slots in the given order, in every layer. Throws for types whose slots share scales.
    void move(const skein_slot_move* moves, size_t count);

    uint64_t bytes() const;

    // Slots of one block of the device; divides a logical block.
    size_t device_block_slots() const {
        return m_slots;
    }

    // Blocks of the device that make one logical block.
    size_t device_blocks() const {
        return m_ratio;
    }

    ov::element::Type key_type() const;
    ov::element::Type value_type() const;

private:
    struct Tensor {
        ov::Tensor tensor;
        // Memory of a host tensor; a device's own tensor has none here.
        std::unique_ptr<void, decltype(&std::free)> memory{nullptr, &std::free};
        // The axis along which the slots of a block lie.
        size_t slot_axis = 2;
    };

    static Tensor allocate(ov::Core& core, const ov::Output<const ov::Node>& port, const skein_stage_spec& spec, size_t blocks);
    void move_slot(Tensor& cache, size_t from, size_t to) const;

    std::vector<Tensor> m_tensors;
    size_t m_slots = 0;
    size_t m_ratio = 0;
    bool m_movable = true;
};

}  // namespace skein
