// Faults of files and manifests: what a loader must refuse, and what a dump must not hide.
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/artifact/options_echo.h"
#include "conformance/faults/plants.h"
#include "conformance/integration/quantised.h"
#include "engine/formats/convert.h"
#include "engine/formats/gguf.h"
#include "engine/formats/hf_tokenizer.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) throw Error(ErrorKind::io, path.string(), "can't be written");
}

/// A finding of "this file is refused": the message without the folder that it names, which differs from run to run.
Finding refused(const fs::path& model, const fs::path& work) {
  Finding f;
  try {
    load_model(model);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::malformed) throw;
    f.failed = true;
    f.place = e.what();
    const std::string folder = work.string() + "/";
    for (size_t at; (at = f.place.find(folder)) != std::string::npos;) f.place.erase(at, folder.size());
  }
  return f;
}

/// A8: the last byte of a key's value flipped in a file of ours.
Finding layout_key(const CheckContext& c, const std::string& key, bool planted) {
  const fs::path file = c.work / "model.gguf";
  fs::create_directories(c.work);
  ConvertOptions convert;
  convert.type = WeightType::q8_0;
  convert.replace = true;
  convert_model(case_dir(c, official_cases().front()) / "model", file, convert);
  if (planted) {
    std::streamoff at = 0;
    {
      const GgufFile opened = GgufFile::open(file);
      const GgufValue* value = opened.find(key);
      if (!value) throw Error(ErrorKind::internal, file.string(), "has no key " + key);
      at = std::streamoff(value->offset + value->bytes.size() - (value->type == GgufType::u32 ? 4 : 1));
    }
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(at);
    const char byte = char(f.get());
    f.seekp(at);
    f.put(char(byte ^ 0x02));
  }
  Finding f = refused(file, c.work);
  f.changed = planted;
  return f;
}

/// A8, the refusal bypassed: rows of q lie as ggml's llama files have them, pairs (j, j + d/2) beside each other.
void qk_rows_bypassed(Engine& e) {
  int places = 0;
  CpuBackend* backend = &e.plantable_backend();
  const int64_t d = e.model().config.head_dim;
  for (Node& n : e.plantable_program().nodes)
    if (n.phase == "q_proj" || n.phase == "k_proj") {
      n.replacement = [backend, d](NodeContext& c) {
        backend->run(c);
        std::vector<float> head(size_t(d), 0);
        for (int64_t g = 0; g < c.rows * c.columns / d; g++) {
          float* y = c.output + g * d;
          std::memcpy(head.data(), y, size_t(d) * sizeof(float));
          for (int64_t j = 0; j < d; j++) y[j] = head[size_t(j % 2 == 0 ? j / 2 : d / 2 + j / 2)];
        }
      };
      n.variant = "qk-rows-bypassed";
      places++;
    }
  if (places == 0) throw NoPlace("qk-rows-bypassed");
}

/// A model's folder in c.work: its weights linked, its config.json as `change` makes it.
fs::path folder_with_config(const CheckContext& c, const OfficialCase& oc, void (*change)(nlohmann::json&),
                            bool planted) {
  const fs::path from = case_dir(c, oc) / "model", to = c.work / "model";
  fs::remove_all(to);
  fs::create_directories(to);
  fs::create_symlink(fs::absolute(from / "model.safetensors"), to / "model.safetensors");
  nlohmann::json config = nlohmann::json::parse(read_text_file(from / "config.json"));
  if (planted) change(config);
  write_file(to / "config.json", config.dump());
  return to;
}

/// D18: head_dim taken for hidden / heads.
Finding head_dim_assumed(const CheckContext& c, const std::string&, bool planted) {
  const fs::path folder = folder_with_config(
      c, official_case("trained-engine"),
      [](nlohmann::json& config) {
        config["head_dim"] = config.at("hidden_size").get<int64_t>() / config.at("num_attention_heads").get<int64_t>();
      },
      planted);
  Finding f = refused(folder, c.work);
  f.changed = planted;
  return f;
}

/// B12: a header's length is taken for another by `delta` bytes, or a GGUF file's version or counts are.
Finding header_off(const CheckContext& c, const char* file, size_t offset, int64_t delta, bool planted) {
  fs::create_directories(c.work);
  const bool gguf = std::string(file).find("gguf") != std::string::npos;
  const fs::path from = case_dir(c, official_cases().front()) / "model";
  fs::path model = gguf ? c.work / file : c.work / "model";
  if (gguf) {
    ConvertOptions convert;
    convert.type = WeightType::f32;
    convert.replace = true;
    convert_model(from, model, convert);
  } else {
    fs::remove_all(model);
    fs::create_directories(model);
    fs::copy_file(from / "config.json", model / "config.json");
    fs::copy_file(from / file, model / file);
  }
  const fs::path edited = gguf ? model : model / file;
  std::string bytes = read_text_file(edited);
  const size_t width = offset == 4 ? 4 : 8;  // GGUF: version u32 at 4, tensor count u64 at 8, key count u64 at 16
  uint64_t n = 0;
  std::memcpy(&n, &bytes[offset], width);
  if (planted) n += uint64_t(delta);
  std::memcpy(&bytes[offset], &n, width);
  write_file(edited, bytes);
  Finding f = refused(model, c.work);
  f.changed = planted;
  return f;
}

/// B13: an option that can change a bit and is not in the manifest.
Finding hidden_option(const CheckContext& c, const std::string& option, bool planted) {
  const OfficialCase& oc = official_cases().front();
  DumpSpec spec = case_spec(c, oc, false);
  spec.requests.resize(1);
  spec.requests[0].decode = 0;
  spec.mode = CaptureMode::hash;
  spec.out = c.work / "dump";
  spec.replace = true;
  run_dump(shared_model(case_dir(c, oc) / "model"), spec);
  nlohmann::ordered_json manifest = Dump::open(spec.out).manifest();
  if (planted) manifest.at("options").erase(option);
  const std::vector<std::string> missing = missing_echoes(manifest);
  Finding f;
  f.failed = !missing.empty();
  if (f.failed) f.place = missing[0];
  f.changed = planted;
  return f;
}

}  // namespace

void add_artifact_faults(std::vector<Fault>& out) {
  const auto add = [&](const std::string& id, const std::string& what, decltype(Fault::own) own) {
    Fault f{id, what, How::artifact};
    f.own = std::move(own);
    out.push_back(std::move(f));
  };
  const std::pair<const char*, const char*> keys[] = {{"layout-version", "assay.layout_version"},
                                                      {"layout-blocks", "assay.layout.blocks"},
                                                      {"layout-qk-rows", "assay.layout.qk_rows"},
                                                      {"tokenizer-hash", "assay.tokenizer_hash"},
                                                      {"token-types", "tokenizer.ggml.token_type"}};
  for (const auto& [name, key] : keys)
    add(fmt::format("A8/{}", name), fmt::format("the file's {} is another than the engine's", key),
        [key = std::string(key)](const CheckContext& c, const std::string&, bool planted) {
          return layout_key(c, key, planted);
        });
  out.push_back({"A8/qk-rows-bypassed", "the layout check is bypassed: rows of q and k lie in another order",
                 How::artifact, "", qk_rows_bypassed});
  add("D18/head-dim-assumed", "head_dim is taken for hidden / heads", head_dim_assumed);
  const struct {
    const char* id;
    const char* what;
    const char* file;
    size_t offset;
    int64_t delta;
  } headers[] = {{"B12/header-8-less", "a safetensors header is taken for 8 bytes shorter", "model.safetensors", 0, -8},
                 {"B12/header-1-more", "a safetensors header is taken for 1 byte longer", "model.safetensors", 0, 1},
                 {"B12/gguf-version", "a GGUF file of another version is read as if it were known", "model.gguf", 4, 1},
                 {"B12/gguf-tensors", "a GGUF file's count of tensors is one off", "model.gguf", 8, -1},
                 {"B12/gguf-keys", "a GGUF file's count of keys is one off", "model.gguf", 16, 1}};
  for (const auto& h : headers)
    add(h.id, h.what, [h](const CheckContext& c, const std::string&, bool planted) {
      return header_off(c, h.file, h.offset, h.delta, planted);
    });
  for (const char* option : {"activations", "kv", "chunk", "batch", "rms_eps", "rope", "tied"})
    add(fmt::format("B13/hidden-{}", option), fmt::format("the option {} is not in the manifest", option),
        [option = std::string(option)](const CheckContext& c, const std::string&, bool planted) {
          return hidden_option(c, option, planted);
        });
}

}  // namespace assay
