#include "engine/formats/artifact_keys.h"

#include <algorithm>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/formats/provenance.h"

namespace assay {
namespace {

constexpr const char *kVersion = "assay.layout_version", *kBlocks = "assay.layout.blocks",
                     *kQkRows = "assay.layout.qk_rows", *kSource = "assay.source_hash",
                     *kTokenizer = "assay.tokenizer_hash";
constexpr const char* kGgmlBlocks = "ggml";

const char* qk_rows_of(const std::string& family) {
  return family == "llama" ? "interleaved" : "halves";
}

bool is_hash(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

void put_artifact_keys(GgufWriter& file, const std::string& family, const std::string& source_hash) {
  file.u32(kVersion, kLayoutVersion);
  file.string(kBlocks, kGgmlBlocks);
  file.string(kQkRows, qk_rows_of(family));
  file.string(kSource, source_hash);
  file.string(kTokenizer, file.tokenizer_hash());
}

void check_artifact_keys(const GgufFile& f, const std::string& family) {
  const bool ours = std::any_of(f.metadata().begin(), f.metadata().end(),
                                [](const auto& entry) { return entry.first.rfind("assay.", 0) == 0; });
  if (!ours) return;
  auto refuse = [&](const char* key, const char* what, const std::string& wanted, const std::string& found,
                    const char* hint) {
    throw Error(ErrorKind::malformed, f.find(key) ? f.where(key) : f.name() + ": key " + in_quotes(key), what, wanted,
                found, hint);
  };
  auto text = [&](const char* key) {
    const auto value = f.string(key);
    if (!value) refuse(key, "is missing", "all assay.* keys or none", "no such key", "Convert the model again");
    return *value;
  };
  const auto version = f.integer(kVersion, 0, UINT32_MAX);
  const std::string newer = "Convert the model again with this program";
  if (!version || *version != kLayoutVersion) {
    refuse(kVersion, "is another layout than this engine's", std::to_string(kLayoutVersion),
           version ? std::to_string(*version) : "no such key", newer.c_str());
  }
  for (auto [key, wanted] : {std::pair{kBlocks, kGgmlBlocks}, {kQkRows, qk_rows_of(family)}}) {
    const std::string found = text(key);
    if (found != wanted) {
      refuse(key, "is another layout than this engine's", in_quotes(wanted), in_quotes(found), newer.c_str());
    }
  }
  if (!is_hash(text(kSource))) refuse(kSource, "is no hash", "32 hex digits", in_quotes(text(kSource)), "");
  const std::string found = tokenizer_hash(f);
  if (text(kTokenizer) != found) {
    refuse(kTokenizer, "the tokenizer keys of this file are not those that were written with it",
           in_quotes(text(kTokenizer)), found.empty() ? "no tokenizer" : in_quotes(found),
           "Another model's vocabulary may have been put into this file");
  }
}

}  // namespace assay
