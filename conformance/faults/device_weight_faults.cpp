// Faults of a device's modules, memory and weights: what is loaded, where it lies, what is moved.
#include <algorithm>

#include "conformance/faults/device_probe.h"
#include "engine/formats/quantise.h"

namespace assay {
namespace device_faults {
namespace {

// A1
void other_version(AssayModule& t) {
  t.abi_version++;
}
void other_size(AssayModule& t) {
  t.struct_size -= uint32_t(sizeof(void*));
}

/// A2: one row times fewer outputs than a threshold is left to the CPU.
void small_projections_stay(AssayModule& t) {
  t.linear = [](AssayDevice* d, const AssayLinear* a) {
    const bool small = std::any_of(a->w, a->w + a->count, [](const AssayWeight& w) { return w.rows < 64; });
    return a->rows == 1 && small ? int(ASSAY_REFUSED) : kept.real->linear(d, a);
  };
}

/// A6: to make room for a streamed matrix, the resident one that is needed next is given up.
void evicts_next(AssayModule& t) {
  t.pack_weight = [](AssayDevice* d, int32_t type, int64_t rows, int64_t columns, const void* raw, void* packed) {
    if (kept.engine) {
      DeviceWeights& weights = kept.engine->device()->weights();
      const auto& all = weights.plan().entries;
      const auto at =
          std::find_if(all.begin(), all.end(), [](const auto& e) { return e.matrix->data == kept.uploaded; });
      for (size_t i = size_t(at - all.begin()) + 1, end = i + all.size(); i < end; i++)
        if (const auto& e = all[i % all.size()]; e.resident) {
          weights.forget(*e.matrix);
          break;
        }
    }
    return kept.real->pack_weight(d, type, rows, columns, raw, packed);
  };
}

/// A10: the loader unpacks every quantised matrix on the host, and keeps that.
void unpacks_on_the_host(AssayModule& t) {
  t.pack_weight = [](AssayDevice* d, int32_t type, int64_t rows, int64_t columns, const void* raw, void* packed) {
    const Matrix m{WeightType(type), rows, columns, static_cast<const std::byte*>(kept.uploaded)};
    if (is_quantised(m.type)) {
      std::vector<float>& floats = kept.unpacked.emplace_back(size_t(rows * columns));
      for (int64_t r = 0; r < rows; r++) decode_row(m.type, m.row(r), columns, &floats[size_t(r * columns)]);
    }
    return kept.real->pack_weight(d, type, rows, columns, raw, packed);
  };
}

/// A5: weights that are uploaded again in every pass are counted as nothing, so that its status is clean.
void counts_inputs_alone(AssayModule& t) {
  t.counters = [](const AssayDevice* d, AssayCounters* out) {
    kept.real->counters(d, out);
    out->uploads -= kept.other_uploads;
  };
}

/// A9: the device has less memory than the host's arithmetic assumed.
void little_memory(AssayModule& t) {
  t.info = [](AssayDevice* d, AssayDeviceInfo* out) {
    const int result = kept.real->info(d, out);
    if (result == ASSAY_DONE) out->free_bytes = std::min<uint64_t>(out->free_bytes, 65536);
    return result;
  };
}
/// A9, a device that lies: it says that much is free and gives a tenth of a megabyte.
void allocation_fails(AssayModule& t) {
  t.allocate = [](AssayDevice* d, uint64_t bytes, void** at) {
    kept.allocated += bytes;
    if (kept.allocated <= 131072) return kept.real->allocate(d, bytes, at);
    *at = nullptr;
    return int(ASSAY_OUT_OF_MEMORY);
  };
}

/// A19: the estimator is fed the type that weights were expanded to.
void expanded_type(AssayModule& t) {
  t.weight_bytes = [](const AssayDevice* d, int32_t type, int64_t rows, int64_t columns) {
    return kept.real->weight_bytes(d, type == ASSAY_Q4_0 ? int32_t(ASSAY_Q8_0) : type, rows, columns);
  };
}

}  // namespace
}  // namespace device_faults

void add_device_weight_faults(std::vector<Fault>& out) {
  using namespace device_faults;
  add(out, "A1/module-removed", "the device module is not there", How::artifact, {.spec = [](DumpSpec& s, const Way&) {
        s.engine.device.module = std::filesystem::path(s.engine.device.module).replace_filename("gone.so").string();
      }});
  add(out, "A1/other-abi-version", "the device module speaks the next version of the ABI", How::artifact,
      {.module = other_version});
  add(out, "A1/other-table-size", "the device module's table is one function shorter", How::artifact,
      {.module = other_size});
  add(out, "A2/small-projections-stay", "one row times few outputs is left to the CPU: another offload threshold",
      How::option, {.module = small_projections_stay},
      "the bytes are right, only the table of what runs where differs from the approved one");
  add(out, "A3/lm-head-not-hooked", "lm_head never runs on the device", How::option,
      {.spec = [](DumpSpec& s,
                  const Way&) { s.engine.device.refuse = [](const Node& n) { return n.requested_rows_only; }; }},
      "every byte is right without it: only the trace says who computed them");
  add(out, "A4/no-preload", "weights are uploaded when first needed", How::option,
      {.spec = [](DumpSpec& s, const Way&) { s.engine.device.preload = false; }});
  add(out, "A5/one-weight-short", "the budget of device memory is one byte short of all weights", How::option,
      {.spec = [](DumpSpec& s, const Way& w) { s.engine.device.budget = w.range.all - 1; }});
  add(out, "A5/nobody-told", "weights stream in every pass and nobody is told", How::option,
      {.spec = [](DumpSpec& s, const Way&) { s.engine.device.notice = nullptr; }});
  add(out, "A5/status-clean",
      "weights stream in every pass, and the device's counters say that only inputs were uploaded", How::state,
      {.module = counts_inputs_alone});
  add(out, "A6/stale-window", "the window of streamed weights marks a matrix as there and does not load it", How::state,
      {.engine = [](Engine& e) { e.device()->weights().plant_stale_window = true; }});
  add(out, "A6/evicts-next", "the window of streamed weights gives up the resident matrix that is needed next",
      How::state, {.module = evicts_next, .engine = [](Engine& e) { kept.engine = &e; }});
  add(out, "A9/device-budget-low", "the budget is right on the host, the device has 64 KiB", How::option,
      {.module = little_memory});
  add(out, "A9/allocation-fails", "the device says that its memory is free, and gives 128 KiB", How::option,
      {.module = allocation_fails});
  add(out, "A10/unpacked-on-host", "the loader unpacks quantised weights on the host while it uploads them",
      How::option, {.module = unpacks_on_the_host, .plain_build = true});
  add(out, "A19/expanded-type", "the planner of device memory is fed the type that weights would be expanded to",
      How::option, {.module = expanded_type});
}

}  // namespace assay
