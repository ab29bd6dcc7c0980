#include <algorithm>

#include "dumps/error.h"
#include "dumps/import.h"
#include "dumps/map_plan.h"
#include "dumps/names.h"

namespace assay {

using mapping::Output;

struct Mapping::Impl {
  const Dump& theirs;
  mapping::MapPlan plan;
  std::vector<Line> lines;
};

Mapping::Mapping(const Dump& theirs, const DumpMap& map)
    : impl_(std::make_unique<Impl>(Impl{theirs, mapping::plan_map(theirs, map.impl()), {}})) {
  for (const Output& o : impl_->plan.outputs) impl_->lines.push_back(o.line);
}
Mapping::~Mapping() = default;
const std::vector<Mapping::Line>& Mapping::lines() const {
  return impl_->lines;
}
const std::vector<std::string>& Mapping::ignored() const {
  return impl_->plan.ignored;
}

Dump Mapping::dump() const {
  Dump out = impl_->theirs;
  out.kind_ = Dump::Kind::dump;
  out.tensors_.clear();
  if (!out.manifest_.is_object()) out.manifest_ = nlohmann::ordered_json::object();
  out.manifest_.erase("rows");
  if (!impl_->plan.rows.empty()) out.manifest_["rows"] = impl_->plan.rows_block();
  out.not_materialised_ = impl_->plan.not_materialised;
  for (const Output& o : impl_->plan.outputs) {
    const DumpTensor& first = *o.walk.sources[0][0];
    DumpTensor t;
    if (o.whole) {  // hashes and statistics hold
      t = first;
      t.inputs.clear();
    }
    t.name = o.line.name;
    t.from = o.line.theirs == o.line.name ? "" : o.line.theirs;
    t.dtype = o.line.dtype;
    t.shape = o.line.shape;
    t.axes.clear();
    t.order = int64_t(out.tensors_.size());
    t.role = role_of(t.name);
    if (o.one_piece) {
      t.data = first.data + size_t(o.first) * size_of(first.dtype);
    } else {
      mapping::Gathered g = impl_->plan.values(o);
      auto values = std::make_shared<std::vector<std::byte>>(std::move(g.values));
      t.data = values->data();
      t.fault = std::move(g.fault);
      out.storage_.push_back(std::move(values));
    }
    out.has_hashes_ = out.has_hashes_ && !t.xxh3_128.empty();
    out.tensors_.push_back(std::move(t));
  }
  out.sort_and_index();
  out.check_prompts();
  return out;
}

std::vector<std::string> Mapping::faults() const {
  std::vector<std::string> out;
  for (const Output& o : impl_->plan.outputs) {
    if (o.walk.reduce != mapping::Walk::Reduce::same) continue;
    const mapping::Gathered g = impl_->plan.values(o);
    if (!g.fault.empty()) out.push_back(o.line.name + ": " + g.fault);
  }
  return out;
}

std::vector<std::string> Mapping::write(DumpWriter::Options options) const {
  refuse_own_input(impl_->theirs.path(), options.dir);
  // All that can be wrong with the map is found before the writer takes the folder, which may hold an older dump.
  std::vector<std::string> found = faults();
  if (!found.empty()) return found;
  const nlohmann::ordered_json rows = impl_->plan.rows_block();
  const nlohmann::ordered_json& manifest = impl_->theirs.manifest();
  options.partial = options.partial || impl_->theirs.partial();
  DumpWriter writer(options);
  if (manifest.is_object() && impl_->theirs.kind() == Dump::Kind::dump) {
    for (const auto& [key, value] : manifest.items()) {
      if (!is_format_key(key) && key != "rows") writer.manifest()[key] = value;
    }
  }
  if (!rows.empty()) writer.manifest()["rows"] = rows;
  writer.manifest()["mapped"] = {{"source", impl_->theirs.path().filename().string()},
                                 {"map", std::filesystem::path(impl_->plan.where).filename().string()}};
  int64_t order = 0;
  for (const Output& o : impl_->plan.outputs) {
    TensorDecl d;
    d.name = o.line.name;
    d.dtype = o.line.dtype;
    d.shape = o.line.shape;
    d.order = order++;
    d.role = role_of(d.name);
    if (o.one_piece) {
      const DumpTensor& first = *o.walk.sources[0][0];
      writer.write(d, first.data + size_t(o.first) * size_of(first.dtype));
    } else {
      writer.write(d, impl_->plan.values(o).values.data());
    }
  }
  writer.not_materialised(impl_->plan.not_materialised);
  writer.finish();
  return found;
}

}  // namespace assay
