#include "cache.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

namespace skein {
namespace {

constexpr size_t ALIGNMENT = 64;
constexpr size_t SLOTS_AXIS = 2;
constexpr size_t LAST_AXIS = 3;

bool is_host(const skein_stage_spec& spec) {
    return std::string(spec.device).rfind("GPU", 0) != 0;
}

// Whether a slot can be copied by itself: quantised keys share scales across the slots of a block.
bool is_plain(const ov::element::Type& type) {
    return type == ov::element::f32 || type == ov::element::f16 || type == ov::element::bf16;
}

size_t dimension(const ov::Output<const ov::Node>& port, size_t axis) {
    const auto& shape = port.get_partial_shape();
    if (shape.rank().is_dynamic() || shape.size() != 4 || shape[axis].is_dynamic()) {
        throw std::runtime_error("the device says no shape for " + port.get_any_name());
    }
    return static_cast<size_t>(shape[axis].get_length());
}

}  // namespace

Cache::Cache(ov::Core& core, ov::CompiledModel& compiled, ov::InferRequest& request, const skein_stage_spec& spec) {
    for (uint32_t layer = 0; layer < spec.layers; ++layer) {
        const auto key = compiled.input("key_cache." + std::to_string(layer));
        const auto value = compiled.input("value_cache." + std::to_string(layer));
        // Values keep one row a slot on every device; keys may be transposed or carry scales.
        const auto slots = dimension(value, SLOTS_AXIS);
        if (slots == 0 || spec.block_slots % slots != 0 || (m_slots != 0 && m_slots != slots)) {
            throw std::runtime_error("the device has blocks of " + std::to_string(slots) + " slots, which do not divide " +
                                     std::to_string(spec.block_slots));
        }
        m_slots = slots;
        m_ratio = spec.block_slots / slots;
        for (const auto& port : {key, value}) {
            auto cache = allocate(core, port, spec, spec.blocks * m_ratio);
            const bool transposed = dimension(port, SLOTS_AXIS) != slots && dimension(port, LAST_AXIS) == slots;
            cache.slot_axis = transposed ? LAST_AXIS : SLOTS_AXIS;
            m_movable = m_movable && is_plain(port.get_element_type());
            request.set_tensor(port, cache.tensor);
            m_tensors.push_back(std::move(cache));
        }
    }
}

Cache::Tensor Cache::allocate(ov::Core& core,
                              const ov::Output<const ov::Node>& port,
                              const skein_stage_spec& spec,
                              size_t blocks) {
    const ov::Shape shape{blocks, dimension(port, 1), dimension(port, 2), dimension(port, 3)};
    const auto type = port.get_element_type();
    Tensor cache;
    if (is_host(spec)) {
        // calloc gives large memory as untouched zero pages: a pool costs what is used of it.
        const auto bytes = ov::shape_size(shape) * type.size();
        cache.memory.reset(std::calloc(1, bytes + ALIGNMENT));
        if (!cache.memory) {
            throw std::runtime_error("no memory for " + std::to_string(bytes) + " bytes of keys or values");
        }
        const auto address = (reinterpret_cast<uintptr_t>(cache.memory.get()) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        cache.tensor = ov::Tensor(type, shape, reinterpret_cast<void*>(address));
    } else {
        // Written to the documented interface; no such device was at hand to run it on.
        auto remote = core.get_default_context(spec.device).create_tensor(type, shape);
        ov::Tensor zeros(type, shape);
        std::memset(zeros.data(), 0, zeros.get_byte_size());
        remote.copy_from(zeros);
        cache.tensor = remote;
    }
    return cache;
}

void Cache::move(const skein_slot_move* moves, size_t count) {
    if (count == 0) {
        return;
    }
    if (!m_movable) {
        throw std::runtime_error("a stage with a quantised KV cache cannot move slots");
    }
    for (auto& cache : m_tensors) {
        for (size_t i = 0; i < count; ++i) {
            if (moves[i].from != moves[i].to) {
                move_slot(cache, moves[i].from, moves[i].to);
            }
        }
    }
}

void Cache::move_slot(Tensor& cache, size_t from, size_t to) const {
    if (!cache.memory) {
        const auto roi = [&](size_t slot) {
            ov::Coordinate begin(4, 0), end(cache.tensor.get_shape());
            begin[0] = slot / m_slots;
            end[0] = begin[0] + 1;
            begin[cache.slot_axis] = slot % m_slots;
            end[cache.slot_axis] = begin[cache.slot_axis] + 1;
            return ov::RemoteTensor(cache.tensor.as<ov::RemoteTensor>(), begin, end);
        };
        const auto source = roi(from);
        auto target = roi(to);
        ov::Tensor host(source.get_element_type(), source.get_shape());
        source.copy_to(host);
        target.copy_from(host);
        return;
    }
    const auto& shape = cache.tensor.get_shape();
    const auto element = cache.tensor.get_element_type().size();
    const auto plane = shape[2] * shape[3] * element;
    auto* base = static_cast<uint8_t*>(cache.tensor.data());
    // Of one head: `run` bytes for each of `count` places that are `stride` bytes apart.
    const bool rows = cache.slot_axis == SLOTS_AXIS;
    const auto run = rows ? shape[3] * element : element;
    const auto count = rows ? 1 : shape[2];
    const auto stride = shape[3] * element;
    for (size_t head = 0; head < shape[1]; ++head) {
        const auto* source = base + (from / m_slots * shape[1] + head) * plane + from % m_slots * run;
        auto* target = base + (to / m_slots * shape[1] + head) * plane + to % m_slots * run;
        for (size_t i = 0; i < count; ++i) {
            std::memcpy(target + i * stride, source + i * stride, run);
        }
    }
}

uint64_t Cache::bytes() const {
    uint64_t sum = 0;
    for (const auto& cache : m_tensors) {
        sum += cache.tensor.get_byte_size();
    }
    return sum;
}

ov::element::Type Cache::key_type() const {
    return m_tensors.empty() ? ov::element::Type() : m_tensors.front().tensor.get_element_type();
}

ov::element::Type Cache::value_type() const {
    return m_tensors.empty() ? ov::element::Type() : m_tensors.back().tensor.get_element_type();
}

}  // namespace skein
