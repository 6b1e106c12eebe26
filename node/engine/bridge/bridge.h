// The C interface between Rust and OpenVINO's C++ interface.
//
// Rust opens the library made from this folder at run time. Nothing but plain data crosses: no
// exception, no C++ type, no memory that the other side must free. Every function that can fail
// returns 0 on success and else fills the caller's error text.
//
// A handle is used by one thread at a time.

#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#    define SKEIN_EXPORT extern "C" __declspec(dllexport)
#else
#    define SKEIN_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Raised with every change to this file; Rust refuses another number.
#define SKEIN_BRIDGE_ABI 1

// A truncated, null-terminated text, owned by the caller.
struct skein_error {
    char* text;
    size_t capacity;
};

struct skein_property {
    const char* key;
    const char* value;
};

struct skein_stage_spec {
    const char* xml;
    const char* weights;
    const char* device;
    const skein_property* properties;
    size_t property_count;
    // Logical blocks of the KV pool, scratch block included.
    uint64_t blocks;
    // KV slots of a logical block.
    uint32_t block_slots;
    uint32_t layers;
    // A first stage has token ids as its input, another one hidden states.
    uint32_t first;
    // A last stage returns logits of the sampled rows, another one hidden states of all rows.
    uint32_t last;
    uint32_t hidden;
    uint32_t vocab;
    // One for each layer of the stage; 0 means none.
    const uint32_t* sliding_windows;
};

struct skein_slot_move {
    uint32_t from;
    uint32_t to;
};

// Checked by the caller: every list has the length that the others imply, and every index is in
// range. The lists are read during the call only.
struct skein_step {
    const int64_t* token_ids;
    const int64_t* position_ids;
    size_t rows;
    const int32_t* past_lens;
    const int32_t* subsequence_begins;
    size_t sequences;
    const int32_t* block_indices;
    const int32_t* block_indices_begins;
    int32_t max_context_len;
    const uint8_t* qq_bias;
    size_t qq_bias_size;
    const int32_t* qq_bias_begins;
    size_t qq_bias_begins_size;
    const int64_t* sampled_rows;
    size_t sampled;
    const skein_slot_move* moves;
    size_t move_count;
};

struct skein_runtime;
struct skein_stage;

SKEIN_EXPORT uint32_t skein_bridge_abi();

// OpenVINO's version and build, valid as long as the library is open.
SKEIN_EXPORT const char* skein_openvino_version();

SKEIN_EXPORT int skein_runtime_open(skein_runtime** runtime, skein_error* error);
SKEIN_EXPORT void skein_runtime_close(skein_runtime* runtime);

SKEIN_EXPORT int skein_stage_load(skein_runtime* runtime,
                                  const skein_stage_spec* spec,
                                  skein_stage** stage,
                                  skein_error* error);
SKEIN_EXPORT void skein_stage_unload(skein_stage* stage);

// Lines of tab-separated fields, valid as long as the stage: see report.cpp.
SKEIN_EXPORT const char* skein_stage_report(const skein_stage* stage);

// Where hidden states [rows, hidden] of the next step are written, valid until that step.
SKEIN_EXPORT int skein_stage_hidden_input(skein_stage* stage, size_t rows, float** data, skein_error* error);

// Applies the moves and runs the graph. The output is [rows, hidden], or on a last stage
// [sampled, vocab]; it is valid until the next step.
SKEIN_EXPORT int skein_stage_step(skein_stage* stage,
                                  const skein_step* step,
                                  const float** output,
                                  skein_error* error);
