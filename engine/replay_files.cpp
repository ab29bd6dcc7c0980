// A reproducer's folder: a dump whose tensors are one node's operands, what it should give, and what it gave.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "dumps/dump.h"
#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/text.h"
#include "dumps/writer.h"
#include "engine/capture.h"
#include "engine/replay.h"

namespace assay {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kReproVersion = 1;
constexpr int64_t kReproMost = int64_t(1) << 40;  // of any count that a reproducer may state

constexpr OpKind kReproOps[] = {OpKind::embed,      OpKind::rms_norm,     OpKind::head_norm,     OpKind::linear,
                                OpKind::rope,       OpKind::attention,    OpKind::silu_mul,      OpKind::add,
                                OpKind::topk,       OpKind::topk_weights, OpKind::expert_linear, OpKind::expert_sum,
                                OpKind::gated_add,  OpKind::sigmoid_mul,  OpKind::sigmoid,       OpKind::l2_norm,
                                OpKind::gated_norm, OpKind::decay,        OpKind::conv,          OpKind::delta_rule,
                                OpKind::columns};
constexpr WeightType kReproTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0,
                                      WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1,
                                      WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

DType weight_dtype(WeightType t) {
  return t == WeightType::f32    ? DType::f32
         : t == WeightType::f16  ? DType::f16
         : t == WeightType::bf16 ? DType::bf16
                                 : DType::u8;
}

template <typename T, size_t n>
T named(const T (&all)[n], const Json& block, const char* key, const std::string& where) {
  const std::string name = json_string(json_get(block, key, where), where + "." + key);
  std::string known;
  for (T t : all) {
    if (name_of(t) == name) return t;
    known += (known.empty() ? "" : ", ") + std::string(name_of(t));
  }
  throw Error(ErrorKind::malformed, where + "." + key, "unknown", known, in_quotes(name));
}

class ReproWriter {
 public:
  explicit ReproWriter(const std::filesystem::path& dir) : writer_(options(dir)) {}
  void tensor(const std::string& name, DType type, std::vector<int64_t> shape, const void* data,
              std::vector<std::string> axes) {
    TensorDecl d;
    d.name = name;
    d.dtype = type;
    d.shape = std::move(shape);
    d.order = order_++;
    d.axes = std::move(axes);
    writer_.write(d, data);
  }
  void floats(const std::string& name, int64_t rows, const std::vector<float>& x, std::vector<std::string> axes) {
    tensor(name, DType::f32, {rows, int64_t(x.size()) / rows}, x.data(), std::move(axes));
  }
  void finish(Json repro) {
    writer_.manifest()["engine"] = {{"name", "assay"}};
    writer_.manifest()["repro"] = std::move(repro);
    writer_.finish();
  }

 private:
  static DumpWriter::Options options(const std::filesystem::path& dir) {
    DumpWriter::Options o;
    o.dir = dir;
    // Only a reproducer is replaced without being asked for: a dump of that name is somebody's work.
    if (std::filesystem::exists(dir / "manifest.json") && !Dump::open(dir).manifest().contains("repro"))
      throw Error(ErrorKind::usage, dir.string(), "holds a dump, which a reproducer would replace", "a new folder, or an older reproducer");
    o.replace = true;
    o.sync = false;
    return o;
  }
  DumpWriter writer_;
  int64_t order_ = 0;
};

/// The tensors of a reproducer, with their shapes as they must be.
class ReproReader {
 public:
  explicit ReproReader(const std::filesystem::path& dir) : dump_(Dump::open(dir)), where_(dir.string()) {
    if (!dump_.manifest().is_object() || !dump_.manifest().contains("repro"))
      throw Error(ErrorKind::malformed, where_, "is no reproducer", "a manifest with the block \"repro\"", "",
                  "assay bisect --repro DIR writes one.");
    if (const auto bad = dump_.verify_hashes(); !bad.empty()) throw Error(ErrorKind::malformed, where_, bad[0]);
  }
  const Json& block() const { return dump_.manifest()["repro"]; }
  const std::string& where() const { return where_; }
  bool has(const std::string& name) const { return dump_.find(name) != nullptr; }

  const DumpTensor& tensor(const std::string& name, DType type, const std::vector<int64_t>& shape) const {
    const DumpTensor* t = dump_.find(name);
    if (!t || !t->data)
      throw Error(ErrorKind::malformed, where_, "the tensor " + name + " is missing or has no values");
    if (t->dtype != type || t->shape != shape)
      throw Error(ErrorKind::malformed, where_, name + " does not fit the rest",
                  std::string(name_of(type)) + " " + shape_text(shape),
                  std::string(name_of(t->dtype)) + " " + shape_text(t->shape));
    return *t;
  }
  std::vector<float> floats(const std::string& name, int64_t rows, int64_t columns) const {
    const DumpTensor& t = tensor(name, DType::f32, {rows, columns});
    std::vector<float> out(size_t(t.elements()));
    std::memcpy(out.data(), t.data, t.bytes());
    return out;
  }
  std::vector<std::byte> bytes(const std::string& name, DType type, const std::vector<int64_t>& shape) const {
    const DumpTensor& t = tensor(name, type, shape);
    return {t.data, t.data + t.bytes()};
  }
  std::vector<int64_t> integers(const std::string& name, int64_t rows) const {
    const DumpTensor& t = tensor(name, DType::i64, {rows});
    std::vector<int64_t> out(size_t(t.elements()));
    std::memcpy(out.data(), t.data, t.bytes());
    return out;
  }
  /// Last axis of a tensor that must be there; its shape is held against the rest where it is read.
  int64_t last_axis(const std::string& name) const {
    const DumpTensor* t = dump_.find(name);
    if (!t || t->shape.empty()) throw Error(ErrorKind::malformed, where_, "the tensor " + name + " is missing");
    return t->shape.back();
  }

 private:
  Dump dump_;
  std::string where_;
};

}  // namespace

void write_repro(const std::filesystem::path& dir, const ReproFile& r) {
  const NodeCase& c = r.c;
  ReproWriter w(dir);
  for (size_t i = 0; i < c.inputs.size(); i++)
    w.floats("inputs/" + std::to_string(i), c.rows, c.inputs[i], {"token", "column"});
  if (!c.ids.empty()) {
    const std::vector<int64_t> ids(c.ids.begin(), c.ids.end());
    w.tensor("ids", DType::i64, {c.rows}, ids.data(), {"token"});
  }
  if (!c.weight.empty()) {
    const DType type = weight_dtype(c.weight.type);
    const int64_t columns = type == DType::u8 ? int64_t(row_bytes(c.weight.type, c.weight.columns)) : c.weight.columns;
    w.tensor("weight", type, {c.weight.rows, columns}, c.weight.data,
             {"output", type == DType::u8 ? "bytes of blocks" : "input"});
  }
  if (!c.vector.empty()) w.tensor("vector", DType::f32, {int64_t(c.vector.size())}, c.vector.data(), {"column"});
  if (!c.cos.empty()) {
    w.floats("rope/cos", c.rows, c.cos, {"token", "pair"});
    w.floats("rope/sin", c.rows, c.sin, {"token", "pair"});
  }
  if (!c.k.empty())
    for (const auto& [name, half] : {std::pair{"state/k", &c.k}, {"state/v", &c.v}})
      w.tensor(name, cache_dtype(c.options.kv), {c.config.kv_heads, c.positions(), c.config.head_dim}, half->data(),
               {"kv_head", "position", "head_dim"});
  const Config& m = c.config;
  if (!c.conv_state.empty())
    w.tensor("state/conv", DType::f32, {m.conv_width, m.gdn_channels()}, c.conv_state.data(),
             {"oldest first", "channel"});
  if (!c.recurrent_state.empty())
    w.tensor("state/recurrent", DType::f32, {m.gdn_v_heads, m.gdn_k_dim, m.gdn_v_dim}, c.recurrent_state.data(),
             {"v_head", "d_k", "d_v"});
  w.floats("expected", c.rows, r.expected, {"token", "column"});
  w.floats("got", c.rows, r.got, {"token", "column"});
  Json j = {{"version", kReproVersion},
            {"origin", r.origin},
            {"op", name_of(c.node.op)},
            {"phase", c.node.phase},
            {"layer", c.node.layer},
            {"heads", c.node.heads},
            {"head_dim", c.node.head_dim},
            {"eps", c.node.eps},
            {"experts", c.node.experts},
            {"chosen", c.node.chosen},
            {"normalised", int(c.node.normalised)},
            {"pass", name_of(c.pass)},
            {"step", c.step},
            {"first_position", c.first_position},
            {"rows", c.rows},
            {"isa", name_of(c.options.isa)},
            {"threads", c.options.threads},
            {"activations", name_of(c.options.activations)},
            {"kv", name_of(c.options.kv)},
            {"planted_faults", r.plants}};
  if (!c.options.device.module.empty()) j["module"] = c.options.device.module;
  if (!c.weight.empty()) j["weight_type"] = name_of(c.weight.type);
  if (c.node.op == OpKind::embed) j["table_rows"] = c.weight.rows;
  if (c.node.op == OpKind::expert_linear) j["weight_columns"] = c.weight.columns;
  j["config"] = {{"family", c.config.family},     {"layers", c.config.layers},     {"heads", c.config.heads},
                 {"kv_heads", c.config.kv_heads}, {"head_dim", c.config.head_dim}, {"rotary", c.config.rope.rotary},
                 {"theta", c.config.rope.theta}};
  if (m.is_gdn(c.node.layer))
    j["gdn"] = {{"k_heads", m.gdn_k_heads},
                {"v_heads", m.gdn_v_heads},
                {"k_dim", m.gdn_k_dim},
                {"v_dim", m.gdn_v_dim},
                {"conv_width", m.conv_width}};
  if (c.node.input_offset || c.node.input_stride || c.node.scaled)
    j["input"] = {{"offset", c.node.input_offset}, {"stride", c.node.input_stride}, {"scaled", int(c.node.scaled)}};
  for (const ColumnRun& run : c.node.runs)
    j["columns"].push_back({{"input", run.input},
                            {"from", run.from},
                            {"stride", run.stride},
                            {"to", run.to},
                            {"count", run.count},
                            {"width", run.width}});
  w.finish(std::move(j));
}

ReproFile read_repro(const std::filesystem::path& dir) {
  const ReproReader in(dir);
  const Json& j = in.block();
  const std::string where = in.where() + "/manifest.json: repro";
  const auto integer = [&](const Json& from, const char* key, int64_t least, int64_t most) {
    return json_int(json_get(from, key, where), where + "." + key, least, most);
  };
  integer(j, "version", kReproVersion, kReproVersion);
  ReproFile r;
  NodeCase& c = r.c;
  r.origin = json_string(json_get(j, "origin", where), where + ".origin");
  r.plants = json_strings(json_get(j, "planted_faults", where), where + ".planted_faults");
  c.node.op = named(kReproOps, j, "op", where);
  c.node.phase = json_string(json_get(j, "phase", where), where + ".phase");
  c.node.heads = integer(j, "heads", 0, kReproMost);
  c.node.head_dim = integer(j, "head_dim", 0, 1 << 20);
  if (j.contains("experts")) {  // older reproducers have none
    c.node.experts = integer(j, "experts", 0, 1 << 20);
    c.node.chosen = integer(j, "chosen", 0, c.node.experts);
    c.node.normalised = integer(j, "normalised", 0, 1) != 0;
  }
  c.node.eps = json_finite(json_get(j, "eps", where), where + ".eps");
  const std::string pass = json_string(json_get(j, "pass", where), where + ".pass");
  const auto known = pass_from_name(pass);
  if (!known) throw Error(ErrorKind::malformed, where + ".pass", "unknown", "prefill, decode, ...", in_quotes(pass));
  c.pass = *known;
  c.step = integer(j, "step", 0, kReproMost);
  c.first_position = integer(j, "first_position", 0, 1 << 23);
  c.rows = integer(j, "rows", 1, 1 << 23);
  constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512vnni, Isa::neon};
  c.options.isa = named(kIsas, j, "isa", where);
  c.options.threads = int(integer(j, "threads", 0, 1024));
  if (j.contains("module")) c.options.device.module = json_string(j["module"], where + ".module");
  constexpr Activations kKinds[] = {Activations::s16, Activations::s8, Activations::f32};
  c.options.activations = named(kKinds, j, "activations", where);
  constexpr KvType kCaches[] = {KvType::f32, KvType::f16, KvType::bf16};
  c.options.kv = named(kCaches, j, "kv", where);
  const Json& config = json_get(j, "config", where);
  c.config.family = json_string(json_get(config, "family", where), where + ".config.family");
  c.config.layers = integer(config, "layers", 1, 4096);
  c.config.heads = integer(config, "heads", 1, 1 << 20);
  c.config.kv_heads = integer(config, "kv_heads", 1, 1 << 20);
  c.config.head_dim = integer(config, "head_dim", 1, 1 << 20);
  c.config.rope.rotary = integer(config, "rotary", 0, 1 << 20);
  c.config.rope.theta = json_finite(json_get(config, "theta", where), where + ".config.theta");
  c.config.context = c.positions();
  c.node.layer = int(integer(j, "layer", -1, c.config.layers - 1));

  constexpr int64_t kMostColumns = 1 << 30;
  if (j.contains("gdn")) {
    const Json& g = j["gdn"];
    c.config.gdn_k_heads = integer(g, "k_heads", 1, 1 << 15);
    c.config.gdn_v_heads = integer(g, "v_heads", 1, 1 << 15);
    c.config.gdn_k_dim = integer(g, "k_dim", 1, 1 << 12);
    c.config.gdn_v_dim = integer(g, "v_dim", 1, 1 << 12);
    c.config.conv_width = integer(g, "conv_width", 1, 1 << 12);
    c.config.gdn_layers.resize(size_t(c.config.layers));
    if (c.node.layer >= 0) c.config.gdn_layers[size_t(c.node.layer)] = true;
    c.node.k_heads = c.config.gdn_k_heads;
    c.node.k_dim = c.config.gdn_k_dim;
  }
  if (j.contains("input")) {
    c.node.input_offset = integer(j["input"], "offset", 0, kMostColumns);
    c.node.input_stride = integer(j["input"], "stride", 0, kMostColumns);
    c.node.scaled = integer(j["input"], "scaled", 0, 1) != 0;
  }
  if (j.contains("columns")) {
    for (const Json& run : j["columns"])
      c.node.runs.push_back({int(integer(run, "input", 0, 1)), integer(run, "from", 0, kMostColumns),
                             integer(run, "stride", 0, kMostColumns), integer(run, "to", 0, kMostColumns),
                             integer(run, "count", 1, kMostColumns), integer(run, "width", 1, kMostColumns)});
  }

  c.columns = in.last_axis("expected");
  r.expected = in.floats("expected", c.rows, c.columns);
  r.got = in.floats("got", c.rows, c.columns);
  const OpKind op = c.node.op;
  const auto refuse = [&](const std::string& what) { throw Error(ErrorKind::malformed, where, what); };
  const int64_t by_head = c.node.heads * c.node.head_dim;
  if ((op == OpKind::rope || op == OpKind::head_norm || op == OpKind::attention) &&
      (by_head != c.columns || by_head == 0))
    refuse("heads * head_dim is not the number of columns");
  const Node& n = c.node;
  const bool of_experts = op == OpKind::topk || op == OpKind::topk_weights || op == OpKind::expert_linear || op == OpKind::expert_sum;
  if (of_experts && (n.experts < 1 || n.chosen < 1)) refuse("an op of experts without experts");
  std::vector<int64_t> widths;  // of the inputs
  switch (op) {
    case OpKind::embed: break;
    case OpKind::linear: widths = {in.last_axis("inputs/0")}; break;
    case OpKind::topk: widths = {n.experts}; break;
    case OpKind::topk_weights: widths = {n.experts, n.chosen}; break;
    case OpKind::expert_linear: widths = {in.last_axis("inputs/0"), n.chosen}; break;
    case OpKind::expert_sum: widths = {n.chosen * c.columns, n.chosen}; break;
    case OpKind::gated_add: widths = {1, c.columns, c.columns}; break;
    case OpKind::silu_mul:
    case OpKind::sigmoid_mul:
    case OpKind::gated_norm:
    case OpKind::add: widths = {c.columns, c.columns}; break;
    case OpKind::head_norm:
      widths = {n.input_stride ? n.heads * n.input_stride : c.columns};
      if (n.input_stride && n.input_stride < n.head_dim) refuse("heads overlap in the input");
      break;
    case OpKind::l2_norm:
      widths = {in.last_axis("inputs/0")};
      if (by_head != c.columns || n.input_offset + by_head > widths[0]) refuse("the heads lie outside the input");
      break;
    case OpKind::delta_rule: {
      const Config& g = c.config;
      if (g.gdn_v_heads < 1 || g.gdn_v_heads % g.gdn_k_heads != 0 || g.gdn_v_columns() != c.columns ||
          n.heads != g.gdn_v_heads || n.head_dim != g.gdn_v_dim)
        refuse("the delta rule's heads do not fit its columns");
      widths = {g.gdn_k_columns(), g.gdn_k_columns(), c.columns, g.gdn_v_heads, g.gdn_v_heads};
      break;
    }
    case OpKind::columns:
      for (int i = 0; in.has("inputs/" + std::to_string(i)); i++)
        widths.push_back(in.last_axis("inputs/" + std::to_string(i)));
      for (const ColumnRun& run : n.runs)
        if (size_t(run.input) >= widths.size() ||
            run.from + (run.count - 1) * run.stride + run.width > widths[size_t(run.input)] ||
            run.to + run.count * run.width > c.columns)
          refuse("columns lie outside their row");
      break;
    default: widths = {c.columns};
  }
  if ((op == OpKind::topk || op == OpKind::topk_weights) && c.columns != n.chosen) refuse("the columns are not the chosen experts");
  for (size_t i = 0; i < widths.size(); i++) c.inputs.push_back(in.floats("inputs/" + std::to_string(i), c.rows, widths[i]));
  if (op == OpKind::topk_weights || op == OpKind::expert_linear)
    for (float id : c.inputs[1])
      if (!(id == -1 || (id >= 0 && id < float(n.experts) && id == std::floor(id)))) refuse("an expert's id is none");
  if (op == OpKind::linear || op == OpKind::embed || op == OpKind::expert_linear) {
    c.weight.type = named(kReproTypes, j, "weight_type", where);
    const DType type = weight_dtype(c.weight.type);
    c.weight.columns = op == OpKind::embed ? c.columns : widths[0];
    if (op == OpKind::expert_linear) {
      if (c.columns % n.chosen != 0) refuse("the columns are no whole products");
      c.weight.columns = integer(j, "weight_columns", 1, kReproMost);
      if (widths[0] != c.weight.columns && widths[0] != n.chosen * c.weight.columns) refuse("the input does not fit the weight");
    }
    if (c.weight.columns % block_elements(c.weight.type) != 0) refuse("the weight's columns are no whole blocks");
    std::vector<int64_t> ids;
    if (op == OpKind::embed) {
      ids = in.integers("ids", c.rows);
      c.weight.rows = integer(j, "table_rows", 1, kReproMost);
    } else {
      c.weight.rows = op == OpKind::linear ? c.columns : n.experts * (c.columns / n.chosen);
    }
    for (int64_t id : ids) {
      if (id < 0 || id >= c.weight.rows) refuse("an id is outside the table");
      c.ids.push_back(int32_t(id));
    }
    auto bytes = std::make_shared<std::vector<std::byte>>(in.bytes(
        "weight", type,
        {c.weight.rows, type == DType::u8 ? int64_t(row_bytes(c.weight.type, c.weight.columns)) : c.weight.columns}));
    c.weight.data = bytes->data();
    c.storage = {bytes};
  }
  if (op == OpKind::gated_norm && by_head != c.columns) refuse("heads * head_dim is not the number of columns");
  if (op == OpKind::conv && (c.config.conv_width < 1 || c.config.gdn_channels() != c.columns))
    refuse("the convolution's channels are not its columns");
  const int64_t vector = op == OpKind::head_norm || op == OpKind::gated_norm ? c.node.head_dim
                         : op == OpKind::conv                                ? c.config.conv_width * c.columns
                         : op == OpKind::decay                               ? 2 * c.columns
                                                                             : c.columns;
  const auto floats = [&](const char* name, const std::vector<int64_t>& shape, std::vector<float>& out) {
    const std::vector<std::byte> raw = in.bytes(name, DType::f32, shape);
    out.resize(raw.size() / sizeof(float));
    std::memcpy(out.data(), raw.data(), raw.size());
  };
  if (op == OpKind::conv) floats("state/conv", {c.config.conv_width, c.columns}, c.conv_state);
  if (op == OpKind::delta_rule)
    floats("state/recurrent", {c.config.gdn_v_heads, c.config.gdn_k_dim, c.config.gdn_v_dim}, c.recurrent_state);
  if (op == OpKind::rms_norm || op == OpKind::head_norm || op == OpKind::gated_norm || op == OpKind::conv ||
      op == OpKind::decay || (op == OpKind::linear && in.has("vector"))) {
    const std::vector<std::byte> raw = in.bytes("vector", DType::f32, {vector});
    c.vector.resize(size_t(vector));
    std::memcpy(c.vector.data(), raw.data(), raw.size());
  }
  if (op == OpKind::rope) {
    const int64_t pairs = c.config.rope.rotary / 2;
    if (pairs < 1 || 2 * pairs != c.config.rope.rotary || 2 * pairs > c.node.head_dim)
      refuse("rotary dims do not fit the head");
    c.cos = in.floats("rope/cos", c.rows, pairs);
    c.sin = in.floats("rope/sin", c.rows, pairs);
  }
  if (op == OpKind::attention) {
    if (c.node.head_dim != c.config.head_dim || c.node.heads % c.config.kv_heads != 0 || c.node.layer < 0)
      refuse("heads do not fit the cache");
    const std::vector<int64_t> shape = {c.config.kv_heads, c.positions(), c.config.head_dim};
    c.k = in.bytes("state/k", cache_dtype(c.options.kv), shape);
    c.v = in.bytes("state/v", cache_dtype(c.options.kv), shape);
  }
  return r;
}

}  // namespace assay
