// Small dumps and official cases for the tests of comparing, written into a folder of their own.
#pragma once
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "dumps/compare.h"
#include "dumps/writer.h"

namespace assay::testing_dumps {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Values {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<double> x;
  DType dtype = DType::f32;
  int64_t order = 0;
  std::vector<std::string> inputs = {};
};

inline std::vector<std::byte> encode(const Values& v) {
  std::vector<std::byte> out(v.x.size() * size_of(v.dtype));
  for (size_t i = 0; i < v.x.size(); i++) {
    std::byte* at = out.data() + i * size_of(v.dtype);
    if (v.dtype == DType::f64) {
      std::memcpy(at, &v.x[i], 8);
    } else if (v.dtype == DType::f32) {
      const float y = float(v.x[i]);
      std::memcpy(at, &y, 4);
    } else if (v.dtype == DType::bf16) {
      const uint16_t y = uint16_t(std::bit_cast<uint32_t>(float(v.x[i])) >> 16);
      std::memcpy(at, &y, 2);
    } else {
      const int64_t y = int64_t(v.x[i]);
      std::memcpy(at, &y, size_of(v.dtype));
    }
  }
  return out;
}

/// Two numbered places under one temporary folder; gone at the end of the test.
class Folder {
 public:
  Folder() {
    static std::atomic<int> n{0};
    path_ = std::filesystem::temp_directory_path() / ("assay_compare_" + std::to_string(getpid()) + "_" + std::to_string(n++));
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

struct DumpOptions {
  CaptureMode mode = CaptureMode::full;
  bool partial = false;
  std::vector<std::string> not_materialised;
  nlohmann::ordered_json manifest = nlohmann::ordered_json::object();
};

inline Dump write_dump(const std::filesystem::path& dir, const std::vector<Values>& tensors, const DumpOptions& o = {}) {
  DumpWriter::Options options;
  options.dir = dir;
  options.mode = o.mode;
  options.partial = o.partial;
  options.replace = true;
  options.sync = false;
  DumpWriter w(options);
  int64_t order = 0;
  for (const Values& v : tensors) {
    TensorDecl d;
    d.name = v.name;
    d.dtype = v.dtype;
    d.shape = v.shape;
    d.order = v.order ? v.order : order++;
    d.inputs = v.inputs;
    w.write(d, encode(v).data());
  }
  if (!o.not_materialised.empty()) w.not_materialised(o.not_materialised);
  for (const auto& [key, value] : o.manifest.items()) w.manifest()[key] = value;
  w.finish();
  return Dump::open(dir);
}

inline void write_safetensors(const std::filesystem::path& file, const std::vector<Values>& tensors) {
  nlohmann::ordered_json head = nlohmann::ordered_json::object();
  std::string data;
  for (const Values& v : tensors) {
    const std::vector<std::byte> bytes = encode(v);
    head[v.name] = {{"dtype", name_of(v.dtype)}, {"shape", v.shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text = head.dump();
  while (text.size() % 8 != 0) text += ' ';
  const uint64_t n = text.size();
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&n), 8);
  out << text << data;
}

/// An official case: golden.safetensors and a manifest with float32 floors (max_rel_row) per phase.
inline Dump write_case(const std::filesystem::path& dir, const std::vector<Values>& tensors,
                       const std::vector<std::pair<std::string, double>>& floors, nlohmann::ordered_json manifest) {
  std::filesystem::create_directories(dir);
  write_safetensors(dir / "golden.safetensors", tensors);
  manifest["noise_floor"]["float32"] = nlohmann::ordered_json::object();
  for (const auto& [phase, floor] : floors) {
    manifest["noise_floor"]["float32"][phase] = {{"max_abs", floor}, {"max_rel", floor}, {"max_rel_row", floor}};
  }
  std::ofstream(dir / "manifest.json") << manifest.dump();
  return Dump::open(dir);
}

inline CompareOptions at(Level level, double tol = 0) {
  CompareOptions o;
  o.level = level;
  o.tolerance.preset = "custom";
  o.tolerance.fixed = tol;
  o.threads = 1;
  return o;
}

inline const CompareRecord& record_of(const CompareResult& r, const std::string& name) {
  for (const CompareRecord& x : r.records) {
    if (x.name == name) return x;
  }
  throw std::runtime_error("no record of " + name);
}

/// Values that are neither round nor alike, in about [-1, 1].
inline std::vector<double> wave(int64_t n, double phase = 0, double height = 1) {
  std::vector<double> out;
  for (int64_t i = 0; i < n; i++) out.push_back(height * std::sin(1.7 * double(i) + phase) * (0.3 + 0.7 * std::cos(0.37 * double(i))));
  return out;
}

}  // namespace assay::testing_dumps
