// assay plan: what a model needs of the host and of a device, before anything is loaded.
#include "engine/plan.h"

#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/device.h"

namespace assay::cli {
namespace {

constexpr int64_t kMostPositions = int64_t(1) << 32;

struct PlanCommand {
  EngineChoice engine;
  std::string model, json;
  int64_t slots = 1, context = 0, rows = 512;
};

struct Class {
  std::string name;
  uint64_t bytes;
  std::string words;
};

std::vector<Class> host_classes(const MemoryPlan& p) {
  return {{"mapped", p.mapped, "files, mapped: pages the system may drop and read again"},
          {"copies", p.copies, "matrices held in memory of their own"},
          {"vectors", p.vectors, "norms and biases, widened"},
          {"panels", p.engine.panels, "quantised weights repacked for SIMD"},
          {"kv", p.engine.kv, p.device ? "caches: touched where the host reads or restores state" : "caches"},
          {"rope", p.engine.rope, "cos and sin tables"},
          {"values", p.engine.values, "buffers of node values"},
          {"quantised", p.engine.quantised, "activations as integers"},
          {"gdn", p.engine.gdn, "states of gated DeltaNet layers"},
          {"scratch", p.engine.scratch, "attention, all threads"},
          {"experts", p.engine.experts, "rows gathered by expert"},
          {"packing", p.packing, "float linears, all threads: at most"},
          {"pinned", p.pinned, "inputs and results of passes, in the device's own host memory"}};
}

std::vector<Class> device_classes(const DevicePlan& d) {
  const std::string resident = d.resident == d.offered
                                   ? fmt::format("all of {} matrices resident, packed", d.offered)
                                   : fmt::format("only {} of {} matrices resident, packed", d.resident, d.offered);
  return {{"weights", d.bytes.weights, resident},
          {"window", d.bytes.window, fmt::format("{} buffers through which the others stream", kWindowBuffers)},
          {"staging", d.bytes.staging, "the largest matrix as the file has it, while it is packed"},
          {"vectors", d.bytes.vectors, "norms and biases"},
          {"rope", d.bytes.rope, "cos and sin tables"},
          {"kv", d.bytes.kv, "caches"},
          {"gdn", d.bytes.gdn, "recurrent states"},
          {"values", d.bytes.values, "buffers of node values"},
          {"io", d.bytes.io, "inputs and results of passes"},
          {"scratch", d.scratch, "the module's: activations as integers, parts of attention"}};
}

void print(const std::vector<Class>& classes) {
  for (const Class& c : classes)
    if (c.bytes) std::cout << fmt::format("  {:<10} {:>9}   {}\n", c.name, bytes_text(c.bytes), c.words);
}

void print_device(const DevicePlan& d, const PlanDevice& asked, int64_t layers, int slots) {
  const AssayDeviceInfo& info = asked.device->info();
  std::cout << fmt::format("\n  on {}\n", asked.instead_of.empty() ? info.name : "the device");
  print(device_classes(d));
  std::cout << fmt::format("  {:<10} {:>9}   caches: {} per slot; a driver's context and graphs come on top\n", "total",
                           bytes_text(d.total()), bytes_text(d.bytes.kv / uint64_t(slots)));
  if (asked.free_bytes)
    std::cout << fmt::format("  {:<10} {:>9}   free on it now\n", "available", bytes_text(*asked.free_bytes));
  std::cout << fmt::format("\n  layers     {} of {} resident; --vram-budget {} holds all weights, {} is the least\n",
                           d.layers_resident, layers, d.budget.all, d.budget.least);
  if (d.bytes.window)
    std::cout << fmt::format("  uploads    {} by each decode pass, in {} uploads\n", bytes_text(d.step_upload_bytes),
                             d.step_uploads);
  std::cout << fmt::format("  nodes      {} of {} on the device{}\n", d.nodes - d.nodes_on_cpu, d.nodes,
                           d.nodes_on_cpu ? ", the others on the CPU (the same bytes)" : "");
  if (!asked.instead_of.empty())
    std::cout << "  asked      the emulation, made of the same sources, for want of the device: " << asked.instead_of
              << "\n";
}

nlohmann::ordered_json record_of(const DevicePlan& d, const PlanDevice& asked) {
  nlohmann::ordered_json r = {{"asked", asked.device->info().name}, {"here", asked.instead_of.empty()}};
  for (const Class& c : device_classes(d)) r[c.name] = c.bytes;
  r["total"] = d.total();
  r["available"] = asked.free_bytes ? nlohmann::ordered_json(*asked.free_bytes) : nlohmann::ordered_json(nullptr);
  r["matrices"] = d.matrices;
  r["offered"] = d.offered;
  r["resident"] = d.resident;
  r["layers_resident"] = d.layers_resident;
  r["budget_least"] = d.budget.least;
  r["budget_all"] = d.budget.all;
  r["uploads_per_decode_pass"] = d.step_uploads;
  r["upload_bytes_per_decode_pass"] = d.step_upload_bytes;
  r["nodes"] = d.nodes;
  r["nodes_on_cpu"] = d.nodes_on_cpu;
  return r;
}

int run(const PlanCommand& o) {
  check_range("--slots", o.slots, 1, 4096);
  check_range("--ctx", o.context, 0, kMostPositions);
  check_range("--rows", o.rows, 1, kMostPositions);
  if (!o.engine.shadow.empty()) throw Error(ErrorKind::usage, "--shadow", "is of a run", "a plan without it");
  const ModelOutline outline = outline_model(o.model);
  o.engine.check(outline.model);
  EngineOptions options;
  options.slots = int(o.slots);
  options.context = o.context;
  o.engine.apply(options);
  check_options(options, outline.model.config);
  std::optional<PlanDevice> device;
  if (!options.device.module.empty()) device = open_for_plan(options.device);
  const int64_t rows = std::min(o.rows, options.context);
  const MemoryPlan p = plan_memory(outline, options, rows, device ? &*device : nullptr);

  const size_t available = available_memory();
  // Mapped pages need not stay: what must fit is the rest, and of the file what is read at a time.
  const bool fits_host = available == 0 || p.total() - p.mapped <= available;
  const bool fits_device = !p.device || !device->free_bytes || p.device->total() <= *device->free_bytes;
  if (!o.json.empty()) {
    nlohmann::ordered_json record = {
        {"record", "plan"}, {"model", o.model}, {"slots", o.slots}, {"context", options.context}, {"rows", o.rows}};
    for (const Class& c : host_classes(p)) record[c.name] = c.bytes;
    record["total"] = p.total();
    record["load_scratch"] = MemoryPlan::load_scratch();
    record["kv_per_slot"] = p.engine.kv / size_t(o.slots);
    record["available"] = available;
    record["fits"] = fits_host && fits_device;
    if (p.device) record["device"] = record_of(*p.device, *device);
    write_records(o.json, {record});
  }
  if (o.json != "-") {
    std::cout << fmt::format("{}: {} slot{} of {} positions, passes of up to {} rows\n\n", o.model, o.slots,
                             o.slots == 1 ? "" : "s", options.context, rows);
    if (p.device) std::cout << "  on the host\n";
    print(host_classes(p));
    std::cout << fmt::format("  {:<10} {:>9}   mapped files included; {}\n", "total", bytes_text(p.total()),
                             p.device ? "loading needs no more: the device packs what it is sent"
                                      : fmt::format("caches: {} per slot; loading needs no more",
                                                    bytes_text(p.engine.kv / size_t(o.slots))));
    if (available)
      std::cout << fmt::format("  {:<10} {:>9}   free on this machine now\n", "available", bytes_text(available));
    if (p.device) print_device(*p.device, *device, outline.model.config.layers, options.slots);
  }
  if (fits_host && available && p.total() > available)
    std::cerr << "assay: the files are larger than what is free: weights are read from disk again and again\n";
  if (!fits_host)
    throw Error(ErrorKind::memory, o.model, "does not fit into the memory of this machine",
                bytes_text(p.total() - p.mapped) + " besides mapped files", bytes_text(available) + " free",
                std::string("What needs less: a smaller --ctx, fewer --slots") +
                    (o.engine.kv == "f32" ? ", --kv f16" : "") +
                    (p.engine.panels ? ", --activations f32 (no panels)" : "") + ", a smaller weight type.");
  if (!fits_device) {
    const uint64_t rest =
        p.device->total() - p.device->bytes.weights - p.device->bytes.window - p.device->bytes.staging;
    throw Error(ErrorKind::memory, o.model, std::string("does not fit ") + device->device->info().name,
                bytes_text(p.device->total()), bytes_text(*device->free_bytes) + " free",
                fmt::format("Beside the weights it has {}. What needs less: --vram-budget (from {} on), a smaller "
                            "--ctx, fewer --slots.",
                            bytes_text(rest), p.device->budget.least));
  }
  if (o.json != "-")
    std::cout << fmt::format("\n  next       assay limits {} --ctx {}{}\n", o.model, options.context,
                             !p.device                                                        ? ""
                             : device->instead_of.empty() && !device->device->info().emulated ? " --device cuda"
                                                                                              : " --device h200");
  return kPass;
}

}  // namespace

void add_plan(CLI::App& app, int& code) {
  auto o = std::make_shared<PlanCommand>();
  CLI::App* c =
      app.add_subcommand("plan", "memory of a model by class, on the host and on a device, before loading it");
  c->add_option("model", o->model, "Hugging Face folder, .gguf file or synth:SHAPE:TYPE")->required();
  o->engine.add(*c);
  c->add_option("--slots", o->slots, "sequences at a time")->capture_default_str();
  c->add_option("--ctx", o->context, "positions per slot, 0: the model's maximum")->capture_default_str();
  c->add_option("--rows", o->rows, "token rows of the largest pass")->capture_default_str();
  c->add_option("--json", o->json, "write a JSON record to FILE (-: stdout)");
  c->footer(
      "With --backend cuda the passes are run on a device that only counts: what is planned is what will be asked for. "
      "Where no\n"
      "device is, the emulation of the same kernels tells the sizes. Exit code 3 where memory does not suffice, 2 "
      "where a\n"
      "--vram-budget holds neither the weights nor a window of them.\n"
      "Example:\n  assay plan synth:8B:Q4_0 --ctx 8192 --slots 4 --backend cuda --vram-budget 2G");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
