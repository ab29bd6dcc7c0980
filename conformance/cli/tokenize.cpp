#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "dumps/json.h"
#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"

namespace assay::cli {
namespace {

struct TokenizeCommand {
  std::string model;
  std::optional<std::string> text;
  bool jsonl = false, plain = false;
};

/// {"text": ...} lines to {"ids", "decoded"} lines; {"ids": [...]} lines are decoded alone. One line out for each line
/// in, at once: another program may ask line by line.
int jsonl(const Tokenizer& tokenizer, bool parse_special) {
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); number++) {
    const std::string where = fmt::format("stdin: line {}", number);
    const nlohmann::ordered_json in = parse_json(line, where);
    if (!in.is_object() || in.contains("text") == in.contains("ids"))
      throw Error(ErrorKind::malformed, where, "is not a line of this format",
                  "{\"text\": \"...\"} or {\"ids\": [...]}");
    std::vector<int32_t> ids;
    if (in.contains("text")) {
      ids = tokenizer.encode(json_string(in.at("text"), where + ": text"), parse_special);
    } else {
      for (int64_t id : json_ints(in.at("ids"), where + ": ids", 0)) {
        if (id > INT32_MAX)
          throw Error(ErrorKind::malformed, where + ": ids", "is no id", "0 to 2^31 - 1", std::to_string(id));
        ids.push_back(int32_t(id));
      }
    }
    std::cout << nlohmann::ordered_json{{"ids", ids}, {"decoded", tokenizer.decode(ids)}}.dump(-1, ' ', true)
              << std::endl;
  }
  return kPass;
}

int table(const Tokenizer& tokenizer, const std::string& text, bool parse_special) {
  const std::vector<int32_t> ids = tokenizer.encode(text, parse_special);
  for (int32_t id : ids)
    std::cout << fmt::format("{:>8}  {}{}\n", id, readable(tokenizer.token(id)),
                             tokenizer.is_special(id) ? "  special" : "");
  const std::string decoded = tokenizer.decode(ids);
  std::cout << fmt::format("{} ids of {} bytes{}\n", ids.size(), text.size(),
                           decoded == text ? "" : "; decoded: " + readable(decoded));
  if (!tokenizer.prefix().empty()) std::cout << "before a text the model wants " << join(tokenizer.prefix()) << "\n";
  return kPass;
}

}  // namespace

void add_tokenize(CLI::App& app, int& code) {
  auto o = std::make_shared<TokenizeCommand>();
  CLI::App* c = app.add_subcommand("tokenize", "text to token ids");
  c->add_option("model", o->model, "tokenizer.json, a folder with one, or a GGUF file")->required();
  c->add_option("text", o->text, "print the ids of this text beside their pieces");
  c->add_flag("--jsonl", o->jsonl,
              "{\"text\"} lines on stdin to {\"ids\", \"decoded\"} lines on stdout; {\"ids\"} lines are decoded");
  c->add_flag("--plain", o->plain, "spelled-out special tokens are text like any other");
  c->footer("Example:\n  assay tokenize goldens/tokenizers/tokenizer-smollm2/tokenizer.json 'Hello, world'");
  c->callback([o, &code] {
    if (o->jsonl == o->text.has_value())
      throw Error(ErrorKind::usage, "assay tokenize", "wants a text or --jsonl", "one of them",
                  o->jsonl ? "both" : "neither");
    const Tokenizer tokenizer = Tokenizer::load(o->model);
    code = o->jsonl ? jsonl(tokenizer, !o->plain) : table(tokenizer, *o->text, !o->plain);
  });
}

}  // namespace assay::cli
