// The exported functions: each calls into C++ and turns whatever is thrown into a text.

#include "bridge.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "openvino/openvino.hpp"
#include "stage.hpp"

struct skein_runtime {
    ov::Core core;
};

struct skein_stage {
    skein::Stage stage;
};

namespace {

void explain(skein_error* error, const char* text) {
    if (error == nullptr || error->capacity == 0) {
        return;
    }
    const auto length = std::min(std::strlen(text), error->capacity - 1);
    std::memcpy(error->text, text, length);
    error->text[length] = '\0';
}

template <typename F>
int guarded(skein_error* error, F&& body) {
    try {
        body();
        return 0;
    } catch (const std::exception& exception) {
        explain(error, exception.what());
    } catch (...) {
        explain(error, "an exception without a text");
    }
    return 1;
}

}  // namespace

uint32_t skein_bridge_abi() {
    return SKEIN_BRIDGE_ABI;
}

const char* skein_openvino_version() {
    return ov::get_openvino_version().buildNumber;
}

int skein_runtime_open(skein_runtime** runtime, skein_error* error) {
    return guarded(error, [&] {
        *runtime = new skein_runtime();
    });
}

void skein_runtime_close(skein_runtime* runtime) {
    guarded(nullptr, [&] {
        delete runtime;
    });
}

int skein_stage_load(skein_runtime* runtime, const skein_stage_spec* spec, skein_stage** stage, skein_error* error) {
    return guarded(error, [&] {
        *stage = new skein_stage{skein::Stage(runtime->core, *spec)};
    });
}

void skein_stage_unload(skein_stage* stage) {
    guarded(nullptr, [&] {
        delete stage;
    });
}

const char* skein_stage_report(const skein_stage* stage) {
    return stage->stage.report().c_str();
}

int skein_stage_hidden_input(skein_stage* stage, size_t rows, float** data, skein_error* error) {
    return guarded(error, [&] {
        *data = stage->stage.hidden_input(rows);
    });
}

int skein_stage_step(skein_stage* stage, const skein_step* step, const float** output, skein_error* error) {
    return guarded(error, [&] {
        *output = stage->stage.step(*step);
    });
}
