#include "conformance/text/tokenizer_golden.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "dumps/error.h"
#include "engine/text/unicode.h"

namespace assay {
namespace {

std::string id_at(const std::vector<int32_t>& ids, size_t i) {
  return i < ids.size() ? std::to_string(ids[i]) : "nothing";
}

class Comparison {
 public:
  Comparison(const Tokenizer& tokenizer, std::filesystem::path golden)
      : tokenizer_(tokenizer), golden_(std::move(golden)) {}

  CheckOutcome run() {
    for_lines("strings.jsonl", [&](const nlohmann::json& line) {
      const auto ids = line.at("ids").get<std::vector<int32_t>>();
      same_ids(tokenizer_.encode(line.at("text").get<std::string>()), ids);
      same_text(ids, line.at("decoded").get<std::string>());
    });
    for_lines("decode.jsonl", [&](const nlohmann::json& line) {
      const auto ids = line.at("ids").get<std::vector<int32_t>>();
      same_text(ids, line.at("decoded").get<std::string>());
      if (line.contains("bytes_hex")) same_bytes(ids, line.at("bytes_hex").get<std::string>());
    });
    if (std::filesystem::exists(golden_ / "chat.jsonl"))
      for_lines("chat.jsonl", [&](const nlohmann::json& line) {
        same_ids(tokenizer_.encode(line.at("rendered").get<std::string>()), line.at("ids").get<std::vector<int32_t>>());
      });
    special_tokens();
    return std::move(out_);
  }

 private:
  void special_tokens() {
    std::ifstream in(golden_ / "manifest.json");
    const nlohmann::json manifest = nlohmann::json::parse(in);
    where_ = "manifest.json";
    for (const auto& [text, id] : manifest.at("special_tokens").items()) {
      out_.compared++;
      const auto found = tokenizer_.id(text);
      if (!found || *found != id.get<int32_t>())
        out_.fail(fmt::format("manifest.json: special token {}: {}, wanted {}", text,
                              found ? std::to_string(*found) : "no token", id.dump()));
    }
  }

  template <typename F>
  void for_lines(const char* file, F each) {
    std::ifstream in(golden_ / file);
    if (!in) throw Error(ErrorKind::malformed, (golden_ / file).string(), "can't be read");
    std::string line;
    for (int64_t number = 1; std::getline(in, line); number++) {
      where_ = fmt::format("{}:{}", file, number);
      each(nlohmann::json::parse(line));
    }
  }

  void same_ids(const std::vector<int32_t>& found, const std::vector<int32_t>& wanted) {
    out_.compared++;
    if (found == wanted) return;
    size_t i = 0;
    while (i < found.size() && i < wanted.size() && found[i] == wanted[i]) i++;
    out_.fail(fmt::format("{}: id {}: {}, wanted {}", where_, i, id_at(found, i), id_at(wanted, i)));
  }

  void same_text(const std::vector<int32_t>& ids, const std::string& wanted) {
    out_.compared += 2;
    if (const std::string text = tokenizer_.decode(ids); text != wanted)
      out_.fail(fmt::format("{}: decoded {}, wanted {}", where_, readable(text), readable(wanted)));
    StreamDecoder stream(tokenizer_);
    std::string streamed;
    for (int32_t id : ids) {
      const std::string part = stream.push(id);
      if (first_invalid_utf8(part))
        out_.fail(fmt::format("{}: the stream was cut inside a character at id {}", where_, id));
      streamed += part;
    }
    streamed += stream.finish();
    if (streamed != wanted)
      out_.fail(fmt::format("{}: streamed {}, wanted {}", where_, readable(streamed), readable(wanted)));
  }

  void same_bytes(const std::vector<int32_t>& ids, const std::string& wanted) {
    out_.compared++;
    std::string hex;
    for (const char byte : tokenizer_.decode_bytes(ids)) hex += fmt::format("{:02x}", uint8_t(byte));
    if (hex != wanted) out_.fail(fmt::format("{}: bytes {}, wanted {}", where_, hex, wanted));
  }

  const Tokenizer& tokenizer_;
  std::filesystem::path golden_;
  std::string where_;
  CheckOutcome out_;
};

}  // namespace

const std::vector<TokenizerCase>& tokenizer_cases() {
  static const std::vector<TokenizerCase> all = {
      {"tokenizer-smollm2", "smollm2", 17 + 200 * 3 + 40 * 2 + 4},
      {"tokenizer-qwen3", "qwen3", 26 + 200 * 3 + 40 * 3 + 5},
      {"tokenizer-qwen3_5", "qwen3_5", 33 + 200 * 3 + 40 * 3},
  };
  return all;
}

std::filesystem::path tokenizer_json_path(const CheckContext& c, const TokenizerCase& tc) {
  const std::filesystem::path kept = c.root / "goldens" / "tokenizers" / tc.name / "tokenizer.json";
  return std::filesystem::exists(kept) ? kept : c.root / ".cache" / "tokenizers" / tc.model / "tokenizer.json";
}

CheckOutcome compare_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& golden) {
  return Comparison(tokenizer, golden).run();
}

}  // namespace assay
