// libFuzzer: any manifest.json beside a fixed values file and hash table gives a readable dump or an Error. What is accepted
// is read through: values, row hashes, rows tables, inspect.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "dumps/dump.h"
#include "dumps/error.h"
#include "dumps/inspect.h"
#include "dumps/rows.h"
#include "dumps/writer.h"

namespace {

namespace fs = std::filesystem;

// The folder that the seeds in fuzz_corpus/manifest describe.
const fs::path& folder() {
  static const fs::path& dir = *new fs::path([] {  // outlives the atexit below
    const fs::path base = fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
    const fs::path d = base / ("assay_manifest_fuzz_" + std::to_string(getpid()));
    assay::DumpWriter::Options o;
    o.dir = d;
    o.sync = false;
    assay::DumpWriter w(o);
    const float v[6] = {1, 2, 3, 4, 5, 6};
    const int64_t rows[6] = {0, 0, 0, 0, 1, 0}, ids[2] = {7, 8};
    const auto add = [&](const char* name, assay::DType dtype, std::vector<int64_t> shape, const void* data) {
      assay::TensorDecl t;
      t.name = name;
      t.dtype = dtype;
      t.shape = std::move(shape);
      w.write(t, data);
    };
    add("prompt0/ids", assay::DType::i64, {2}, ids);
    add("p/embed", assay::DType::f32, {2, 3}, v);
    add("p/rows", assay::DType::i64, {2, 3}, rows);
    w.manifest()["prompts"] = {{{"ids", {7, 8}}}};
    w.manifest()["rows"] = {{"p", "p/rows"}};
    w.finish();
    std::atexit([] { fs::remove_all(folder()); });
    return d;
  }());
  return dir;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::ofstream(folder() / "manifest.json", std::ios::binary).write(reinterpret_cast<const char*>(data), std::streamsize(size));
  try {
    const assay::Dump d = assay::Dump::open(folder());
    d.verify_hashes();
    std::ostringstream out;
    assay::InspectOptions options;
    options.tensors = true;
    assay::inspect(folder(), out, options);
    if (d.mode() == assay::CaptureMode::full) assay::align_rows(d).verify_hashes();
  } catch (const assay::Error& e) {
    if (e.kind() == assay::ErrorKind::internal || e.kind() == assay::ErrorKind::memory) std::abort();
  }
  return 0;
}
