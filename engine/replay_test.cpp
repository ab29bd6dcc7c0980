// Nodes run alone: their values, cutting a failing case down, and the folder it is written to.
#include "engine/replay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "dumps/error.h"
#include "engine/formats/loader.h"

namespace assay {
namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "assay-replay-XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

std::vector<float> wave(int64_t n, double phase = 0) {
  std::vector<float> out;
  for (int64_t i = 0; i < n; i++)
    out.push_back(float(std::sin(1.7 * double(i) + phase) * (0.3 + 0.7 * std::cos(0.37 * double(i)))));
  return out;
}

NodeCase plain(OpKind op, int64_t rows, int64_t columns) {
  NodeCase c;
  c.config.family = "test";
  c.config.layers = 2;
  c.config.heads = 4;
  c.config.kv_heads = 2;
  c.config.head_dim = 8;
  c.options.isa = Isa::scalar;
  c.options.threads = 1;
  c.options.kv = KvType::f32;
  c.node.op = op;
  c.node.layer = 1;
  c.rows = rows;
  c.columns = columns;
  return c;
}

/// y = W x with W [columns, summed] of f32.
NodeCase linear(int64_t rows, int64_t columns, int64_t summed) {
  NodeCase c = plain(OpKind::linear, rows, columns);
  c.node.phase = "q_proj";
  c.inputs = {wave(rows * summed)};
  auto w = std::make_shared<std::vector<float>>(wave(columns * summed, 1));
  c.weight = {WeightType::f32, columns, summed, reinterpret_cast<const std::byte*>(w->data())};
  c.storage = {w};
  c.vector = wave(columns, 2);
  return c;
}

NodeCase attention(int64_t first, int64_t rows) {
  NodeCase c = plain(OpKind::attention, rows, 32);
  c.node.phase = "attn_context";
  c.node.heads = 4;
  c.node.head_dim = 8;
  c.first_position = first;
  c.inputs = {wave(rows * 32)};
  const std::vector<float> k = wave((first + rows) * 16, 3), v = wave((first + rows) * 16, 4);
  store_rows(c.config, KvType::f32, first + rows, k.data(), v.data(), c.k, c.v);
  return c;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Replay, ANodeAloneGivesItsValue) {
  NodeCase c = plain(OpKind::add, 2, 3);
  c.node.phase = "attn_residual";
  c.inputs = {{1, 2, 3, 4, 5, 6}, {10, 20, 30, 40, 50, 60}};
  const NodeRun r = run_case(c);
  EXPECT_EQ(r.value, (std::vector<float>{11, 22, 33, 44, 55, 66}));
  EXPECT_EQ(r.variant, "scalar");
  NodeCase n = plain(OpKind::rms_norm, 1, 4);
  n.node.phase = "attn_norm";
  n.inputs = {{3, 3, 3, 3}};
  n.vector = {1, 2, 3, 4};
  EXPECT_EQ(run_case(n).value, (std::vector<float>{1, 2, 3, 4}));
  NodeCase e = plain(OpKind::embed, 2, 2);
  e.node.layer = -1;
  const std::vector<float> table = {0, 1, 2, 3, 4, 5};
  e.weight = {WeightType::f32, 3, 2, reinterpret_cast<const std::byte*>(table.data())};
  e.ids = {2, 0};
  EXPECT_EQ(run_case(e).value, (std::vector<float>{4, 5, 0, 1}));
}

TEST(Replay, RowsOfALongerCaseAreThoseOfAShorterOne) {
  const NodeCase whole = attention(0, 300);
  const std::vector<float> all = run_case(whole).value;
  NodeCase last = attention(299, 1);
  last.inputs[0] = {whole.inputs[0].end() - 32, whole.inputs[0].end()};
  EXPECT_TRUE(same(run_case(last).value, {all.end() - 32, all.end()}));
}

/// A plant that alters the output where `bad` says so, given the whole context.
Rewrite altering(std::function<void(NodeContext&)> bad) {
  return [bad](Engine& e) {
    Node& n = e.plantable_program().nodes[0];
    wrap_node(e, n, [bad](NodeContext& c, const std::function<void(NodeContext&)>& inner) {
      inner(c);
      bad(c);
    });
    n.variant = "altered";
  };
}

Fails fails_with(const Rewrite& plant) {
  return [plant](const NodeCase& c) { return !same(run_case(c, plant).value, run_case(c).value); };
}

TEST(Replay, EveryWeightOfEveryFamilyHasAPlace) {
  int64_t weights = 0;
  const std::filesystem::path cases = std::filesystem::path(ASSAY_SOURCE_DIR) / "goldens/official";
  for (const auto& entry : std::filesystem::directory_iterator(cases)) {
    if (!std::filesystem::is_directory(entry) || !std::filesystem::exists(entry.path() / "model")) continue;
    Model m;
    try {
      m = load_model(entry.path() / "model");
    } catch (const Error& e) {  // a family that the engine does not have yet
      EXPECT_NE(std::string(e.what()).find("is not supported"), std::string::npos) << e.what();
      continue;
    }
    for (const Node& n : build_program(m).nodes) {
      const WeightPlace place = weight_place(m.weights, n);
      EXPECT_EQ(place.matrix_name.empty(), n.weight == nullptr) << m.config.family << " " << n.name();
      EXPECT_EQ(place.vector_name.empty(), n.vector == nullptr) << m.config.family << " " << n.name();
      weights += (n.weight != nullptr) + (n.vector != nullptr);
    }
  }
  EXPECT_GT(weights, 500);
}

TEST(Replay, ALinearCaseShrinksToItsCulprit) {
  NodeCase c = linear(5, 48, 96);
  // Rows whose input holds this number, in outputs whose weight row begins with that one, come out wrong.
  const float x = c.inputs[0][3 * 96 + 70];
  float w;
  std::memcpy(&w, c.weight.row(37) + 4 * 70, 4);
  const Rewrite plant = altering([x, w](NodeContext& k) {
    const Matrix& m = *k.node.weight;
    for (int64_t r = 0; r < k.rows; r++)
      for (int64_t n = 0; n < m.rows; n++)
        for (int64_t i = 0; i < m.columns; i++)
          if (k.inputs[0][r * m.columns + i] == x && std::memcmp(m.row(n) + 4 * i, &w, 4) == 0)
            k.output[r * m.rows + n] += 1;
  });
  ASSERT_TRUE(fails_with(plant)(c));
  const NodeCase s = shrink(c, fails_with(plant));
  EXPECT_EQ(s.rows, 1);
  EXPECT_EQ(s.columns, 1);
  EXPECT_EQ(s.weight.columns, 1);
  EXPECT_EQ(s.inputs[0][0], x);
  EXPECT_EQ(s.first_position, 3);
  EXPECT_EQ(run_case(s, plant).variant, "altered");
}

TEST(Replay, AnAttentionCaseShrinksInRowsPositionsAndHeads) {
  NodeCase c = attention(20, 6);
  const Rewrite plant =
      altering([](NodeContext& k) {  // the second kv head's queries of sequences of at least 5 positions
        const int64_t d = k.node.head_dim, group = k.node.heads / k.config.kv_heads;
        const float* v = reinterpret_cast<const float*>(k.cache->v);
        (void)v;
        for (int64_t r = 0; r < k.rows; r++)
          if (k.positions[size_t(r)] >= 4) k.output[r * k.columns + (k.node.heads - group) * d] += 1;
      });
  const NodeCase s = shrink(c, fails_with(plant));
  EXPECT_EQ(s.rows, 1);
  EXPECT_EQ(s.positions(), 5);
  EXPECT_EQ(s.config.kv_heads, 1);
  EXPECT_EQ(s.node.heads, 2);
}

TEST(Replay, AFolderHoldsTheCase) {
  Folder f;
  for (NodeCase c : {linear(2, 16, 64), attention(3, 2)}) {
    ReproFile w;
    w.c = c;
    w.expected = run_case(c).value;
    w.got = w.expected;
    w.got[1] += 1;
    w.plants = {"somebody"};
    w.origin = "prompt0/prefill/0/layer.1/" + c.node.phase;
    write_repro(f.path / "r", w);
    const ReproFile r = read_repro(f.path / "r");
    EXPECT_EQ(r.origin, w.origin);
    EXPECT_EQ(r.plants, w.plants);
    EXPECT_EQ(r.c.node.op, c.node.op);
    EXPECT_TRUE(same(run_case(r.c).value, r.expected));
    EXPECT_FALSE(same(r.got, r.expected));
  }
}

TEST(Replay, AFolderThatContradictsItselfIsRefused) {
  Folder f;
  ReproFile w;
  w.c = linear(2, 16, 64);
  w.expected = w.got = run_case(w.c).value;
  w.origin = "prompt0/prefill/0/layer.1/q_proj";
  write_repro(f.path / "r", w);
  const std::filesystem::path manifest = f.path / "r" / "manifest.json";
  std::ifstream in(manifest);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"op\": \"linear\"", "\"op\": \"kv_store\""},
                                                        {"\"op\": \"linear\"", "\"op\": \"add\""},
                                                        {"\"rows\": 2,", "\"rows\": 3,"},
                                                        {"\"layer\": 1,", "\"layer\": 7,"},
                                                        {"\"weight_type\": \"F32\"", "\"weight_type\": \"Q4_0\""},
                                                        {"\"isa\": \"scalar\"", "\"isa\": \"sse9\""},
                                                        {"\"first_position\": 0", "\"first_position\": -1"},
                                                        {"\"version\": 1,", "\"version\": 2,"}}) {
    std::string bad = text, a = from, b = to;
    if (bad.find(a) == std::string::npos) {  // compact JSON
      std::erase(a, ' ');
      std::erase(b, ' ');
    }
    const size_t at = bad.rfind(a);
    ASSERT_NE(at, std::string::npos) << from;
    bad.replace(at, a.size(), b);
    std::ofstream(manifest) << bad;
    EXPECT_THROW(read_repro(f.path / "r"), Error) << to;
  }
  std::ofstream(manifest) << text;
  EXPECT_NO_THROW(read_repro(f.path / "r"));
  EXPECT_THROW(read_repro(f.path / "nowhere"), Error);
}

}  // namespace
}  // namespace assay
