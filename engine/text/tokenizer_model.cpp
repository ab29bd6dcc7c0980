#include "engine/text/tokenizer_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/text/unicode.h"

namespace assay {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what, const std::string& why,
                         const std::string& wanted = {}, const std::string& found = {}, const std::string& hint = {}) {
  throw Error(ErrorKind::malformed, name + ": " + what, why, wanted, found, hint);
}

/// Ids may have holes, but a table must not become larger than the file that asks for it.
int32_t checked_id(int64_t id, size_t tokens, const std::string& name, const std::string& token) {
  const int64_t limit = std::min<int64_t>(2 * int64_t(tokens) + 1024, int64_t{1} << 30);
  if (id < 0 || id >= limit)
    refuse(name, "token " + in_quotes(token, 40), "has an absurd id",
           fmt::format("0 to {} ({} tokens)", limit - 1, tokens), std::to_string(id));
  return int32_t(id);
}

}  // namespace

TokenizerModel::TokenizerModel(TokenizerParts p)
    : name(p.name),
      hash(p.hash),
      nfc(p.nfc),
      pre_tokenizer(std::move(p.steps)),
      bos(p.bos),
      eos(p.eos),
      prefix(p.prefix) {
  const size_t tokens = p.vocabulary.size() + p.added.size();
  std::unordered_map<std::string, int32_t> entries;  // as the file spells them
  std::unordered_map<std::string, int32_t> by_bytes;
  entries.reserve(p.vocabulary.size());
  by_bytes.reserve(p.vocabulary.size());
  const auto place = [&](int32_t id, std::string bytes) {
    if (size_t(id) >= text.size()) {
      text.resize(size_t(id) + 1);
      exists.resize(size_t(id) + 1);
      special.resize(size_t(id) + 1);
    }
    text[size_t(id)] = std::move(bytes);
    exists[size_t(id)] = true;
  };
  for (auto& [entry, wide] : p.vocabulary) {
    const int32_t id = checked_id(wide, tokens, name, entry);
    if (size_t(id) < exists.size() && exists[size_t(id)])
      refuse(name, "token " + in_quotes(entry, 40), "has the id of another token", "an id of its own",
             std::to_string(id));
    if (!entries.emplace(entry, id).second)
      refuse(name, "token " + in_quotes(entry, 40), "stands twice in the vocabulary");
    auto bytes = bytes_of_byte_level(entry);
    if (bytes && !bytes->empty()) by_bytes.emplace(*bytes, id);
    place(id, bytes ? std::move(*bytes) : entry);  // the official decoder also takes other characters as they are
  }

  std::vector<AddedToken> raw, normal;
  for (AddedToken& t : p.added) {
    if (t.content.empty()) continue;  // the official code ignores it
    if (auto bad = first_invalid_utf8(t.content))
      refuse(name, "added token " + in_quotes(t.content, 40), "is not UTF-8", "", fmt::format("byte {}", *bad));
    t.id = checked_id(t.id, tokens, name, t.content);
    const auto entry = entries.find(t.content);
    const auto before = added_ids.find(t.content);
    const int32_t other = entry != entries.end() ? entry->second : before != added_ids.end() ? before->second : t.id;
    if (other != t.id)
      refuse(name, "added token " + in_quotes(t.content, 40), "has two ids", std::to_string(other),
             std::to_string(t.id), "Another model's tokenizer may lie in this folder");
    if (entry == entries.end() && before == added_ids.end() && size_t(t.id) < exists.size() && exists[size_t(t.id)])
      refuse(name, "added token " + in_quotes(t.content, 40), "has the id of another token", "an id of its own",
             fmt::format("{}, which is {}", t.id, in_quotes(text[size_t(t.id)], 40)),
             "Another model's tokenizer may lie in this folder");
    place(t.id, t.content);
    special[size_t(t.id)] = t.special;
    added_ids[t.content] = t.id;
    (t.normalized ? normal : raw).push_back(t);
  }
  if (nfc)
    for (AddedToken& t : normal) t.content = assay::nfc(t.content);
  verbatim = AddedTokenFinder(std::move(raw));
  normalized = AddedTokenFinder(std::move(normal));

  std::vector<Merge> merges;
  merges.reserve(p.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < p.merges.size(); rank++) {
    const auto id_of = [&](const std::string& entry) {
      auto it = entries.find(entry);
      if (it == entries.end())
        refuse(name, fmt::format("merge {}", rank), in_quotes(entry, 40) + " is not in the vocabulary", "tokens",
               in_quotes(p.merges[rank].first + " " + p.merges[rank].second, 80));
      return it->second;
    };
    const auto& [left, right] = p.merges[rank];
    joined = left + right;
    const int32_t l = id_of(left), r = id_of(right);
    merges.push_back({l, r, id_of(joined)});
  }

  int32_t unknown = -1;
  bool every_byte = true;
  for (int b = 0; b < 256; b++) every_byte &= by_bytes.contains(std::string(1, char(b)));
  if (!every_byte && p.byte_fallback)
    refuse(name, "model.byte_fallback", "is not supported where bytes have no token", "false");
  if (!every_byte && p.unknown) {
    auto it = entries.find(*p.unknown);
    if (it == entries.end())
      refuse(name, "model.unk_token", "is not in the vocabulary", "a token", in_quotes(*p.unknown, 40));
    if (p.fuse_unknown) refuse(name, "model.fuse_unk", "is not supported where bytes have no token", "false");
    unknown = it->second;
  }
  bpe = Bpe(std::move(by_bytes), merges, unknown, p.ignore_merges);

  const auto known = [&](int64_t id, const char* what) {
    if (id < 0 || size_t(id) >= exists.size() || !exists[size_t(id)])
      refuse(name, fmt::format("the {} id", what), "has no token", fmt::format("an id below {}", text.size()),
             std::to_string(id), "Another model's tokenizer may lie in this folder");
  };
  if (bos) known(*bos, "bos");
  for (int32_t id : eos) known(id, "eos");
  for (int32_t id : prefix) known(id, "prefix");
  for (size_t id = 0; id < special.size(); id++)
    if (special[id]) special_ids.push_back(int32_t(id));
}

}  // namespace assay
