// What may be asked of a device: part of EngineOptions, without the machinery behind it (device_backend.h).
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "engine/program.h"

namespace assay {

struct DeviceOptions {
  std::string module;          // path of the library; empty: no device
  int ordinal = 0;
  bool required = false;       // a module that can't be had is an error, not a notice: it was asked for by name, or to be checked
  uint64_t budget = 0;         // bytes for weights (--vram-budget); 0: what the device has free beside everything else
  bool fused = true;           // groups of nodes as one launch
  bool graph = true;           // decode passes captured and replayed
  bool preload = true;         // weights uploaded when the engine is built, not when first needed
  bool timed = false;          // trace entries have the device's own seconds per step; decode passes are not replayed
  bool shadow = false;         // node by node, each device op checked against the CPU on the device's own inputs
  std::function<bool(const Node&)> refuse;   // checks: nodes that the CPU has to do
  std::function<void(const std::string&)> notice;   // told what a person should know: no device, weights that stream
};

}  // namespace assay
