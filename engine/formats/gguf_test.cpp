#include "engine/formats/gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/formats/test_files.h"

namespace assay {
namespace {

using namespace testing_files;

GgufFile parse(const std::string& bytes) {
  return GgufFile::parse(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "t.gguf");
}

std::string floats(size_t n) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; i++) v[i] = float(i);
  return raw(v);
}

/// Two tensors and a few values; every malformed file below is a change to it.
GgufBuilder small() {
  GgufBuilder b;
  b.str("general.architecture", "llama").u32("llama.block_count", 2).strings("tokens", {"a", "bc"});
  b.tensor("a", {4, 2}, kF32, floats(8)).tensor("b", {32}, kF32, floats(32));
  return b;
}

TEST(Gguf, ReadsValuesOfAllTypes) {
  GgufBuilder b = small();
  b.add("u8", kVU8, raw(uint8_t(200))).add("i8", kVI8, raw(int8_t(-5))).add("u16", kVU16, raw(uint16_t(60000)));
  b.add("i16", kVI16, raw(int16_t(-300))).add("i32", kVI32, raw(int32_t(-7))).add("u64", kVU64, raw(uint64_t(1) << 40));
  b.add("i64", kVI64, raw(int64_t(-1) << 40))
      .add("f32", kVF32, raw(0.5f))
      .add("f64", kVF64, raw(1e300))
      .add("bool", kVBool, raw(uint8_t(1)));
  b.array("ids", kVI32, 3, raw(std::vector<int32_t>{1, -2, 3}));
  b.array(
      "nested", kVArray, 2,
      raw(uint32_t(kVU8)) + raw(uint64_t(2)) + "xy" + raw(uint32_t(kVString)) + raw(uint64_t(1)) + gguf_string("z"));
  const std::string bytes = b.build();
  const GgufFile f = parse(bytes);
  EXPECT_EQ(f.integer("u8", 0, 255), 200);
  EXPECT_EQ(f.integer("i8", -128, 127), -5);
  EXPECT_EQ(f.integer("u16", 0, 65535), 60000);
  EXPECT_EQ(f.integer("i16", INT64_MIN, 0), -300);
  EXPECT_EQ(f.integer("i32", INT64_MIN, 0), -7);
  EXPECT_EQ(f.integer("u64", 0, INT64_MAX), int64_t(1) << 40);
  EXPECT_EQ(f.integer("i64", INT64_MIN, 0), int64_t(-1) << 40);
  EXPECT_EQ(f.number("f32"), 0.5);
  EXPECT_EQ(f.number("f64"), 1e300);
  EXPECT_EQ(f.boolean("bool"), true);
  EXPECT_EQ(f.string("general.architecture"), "llama");
  EXPECT_EQ(f.strings("tokens"), (std::vector<std::string_view>{"a", "bc"}));
  EXPECT_EQ(f.integers("ids"), (std::vector<int64_t>{1, -2, 3}));
  ASSERT_NE(f.find("nested"), nullptr);
  EXPECT_EQ(f.find("nested")->count, 2u);
  EXPECT_FALSE(f.integer("absent", 0, 1).has_value());
  EXPECT_EQ(f.metadata()[1].first, "llama.block_count");
}

TEST(Gguf, ReadsTensors) {
  const std::string bytes = small().build();
  const GgufFile f = parse(bytes);
  ASSERT_EQ(f.tensors().size(), 2u);
  const GgufTensor* a = f.find_tensor("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 4}));  // the file has the columns first
  EXPECT_EQ(a->bytes, 32u);
  EXPECT_EQ(std::memcmp(a->data, floats(8).data(), 32), 0);
  EXPECT_EQ(f.find_tensor("b")->offset % 32, 0u);
  EXPECT_EQ(f.find_tensor("c"), nullptr);
}

TEST(Gguf, ReadsVersion2AndOtherAlignments) {
  for (uint64_t alignment : {8, 32, 64, 4096}) {
    GgufBuilder b = small();
    b.version = 2;
    b.alignment = alignment;
    b.u32("general.alignment", uint32_t(alignment));
    const std::string bytes = b.build();
    const GgufFile f = parse(bytes);
    EXPECT_EQ(f.version(), 2u);
    EXPECT_EQ(f.find_tensor("b")->offset % alignment, 0u);
    EXPECT_EQ(std::memcmp(f.find_tensor("b")->data, floats(32).data(), 128), 0);
  }
}

TEST(Gguf, ReadsEverySupportedType) {
  struct Row {
    uint32_t number;
    WeightType type;
    size_t bytes;
  };
  for (Row r : {Row{kF32, WeightType::f32, 1024},
                {kF16, WeightType::f16, 512},
                {kBF16, WeightType::bf16, 512},
                {kQ8_0, WeightType::q8_0, 272},
                {kQ4_0, WeightType::q4_0, 144},
                {kQ4_1, WeightType::q4_1, 160},
                {6, WeightType::q5_0, 176},
                {7, WeightType::q5_1, 192},
                {12, WeightType::q4_k, 144},
                {13, WeightType::q5_k, 176},
                {kQ6_K, WeightType::q6_k, 210}}) {
    GgufBuilder b = small();
    b.tensor("w", {256, 3}, r.number, std::string(3 * r.bytes, '\0'));
    const std::string bytes = b.build();
    const GgufFile f = parse(bytes);
    EXPECT_EQ(f.find_tensor("w")->type, r.type);
    EXPECT_EQ(f.find_tensor("w")->bytes, 3 * r.bytes) << name_of(r.type);
  }
}

TEST(Gguf, TypedReadsNameKeyWantedAndFound) {
  GgufBuilder b = small();
  b.f32("nan", NAN).add("big", kVU64, raw(UINT64_MAX));
  const std::string bytes = b.build();
  const GgufFile f = parse(bytes);
  EXPECT_NE(error_of([&] {
              (void)f.integer("general.architecture", 0, 9);
            }).find("\"general.architecture\": has the wrong type; wanted an integer, found string"),
            std::string::npos);
  EXPECT_NE(error_of([&] { (void)f.integer("llama.block_count", 3, 9); }).find("wanted 3 to 9, found 2"),
            std::string::npos);
  EXPECT_NE(error_of([&] { (void)f.integer("big", 0, INT64_MAX); }).find("2^63"), std::string::npos);
  EXPECT_NE(error_of([&] { (void)f.number("nan"); }).find("a finite number"), std::string::npos);
  EXPECT_NE(error_of([&] { (void)f.strings("llama.block_count"); }).find("an array of strings, found u32"),
            std::string::npos);
  EXPECT_NE(error_of([&] { (void)f.integers("tokens"); }).find("an array of integers, found an array of string"),
            std::string::npos);
  EXPECT_NE(error_of([&] { (void)f.boolean("tokens"); }).find("a boolean, found an array of string"),
            std::string::npos);
  EXPECT_NE(error_of([&] { (void)f.string("nan"); }).find("a string, found f32"), std::string::npos);
}

struct Malformed {
  const char* name;
  std::function<void(GgufBuilder&)> change;
  std::vector<std::string> says;  // parts of the message: offset, reason, wanted, found
};

const std::vector<Malformed>& malformed() {
  static const std::vector<Malformed> table = {
      {"magic", [](auto& b) { b.magic = "GGML"; }, {"byte 0", "wanted \"GGUF\", found \"GGML\""}},
      {"version 1", [](auto& b) { b.version = 1; }, {"byte 4", "version", "wanted version 3 (or 2)", "found 1"}},
      {"version 4", [](auto& b) { b.version = 4; }, {"byte 4", "found 4"}},
      {"big-endian", [](auto& b) { b.version = 0x03000000; }, {"byte 4", "big-endian"}},
      {"tensor count 2^60",
       [](auto& b) { b.tensor_count = uint64_t(1) << 60; },
       {"byte 8", "tensors", "at most", "1152921504606846976"}},
      {"metadata count 2^60",
       [](auto& b) { b.metadata_count = uint64_t(1) << 60; },
       {"byte 16", "metadata", "1152921504606846976"}},
      {"one tensor too many", [](auto& b) { b.tensor_count = 3; }, {"byte"}},
      {"one value too many", [](auto& b) { b.metadata_count = 4; }, {"byte"}},
      {"key length past the end",
       [](auto& b) {
         b.metadata_count = 4;
         b.add("k", kVU32, raw(uint32_t(1)));
         b.values[0].key = std::string(70000, 'k');
       },
       {"byte 24", "a metadata key is too long", "at most 65535", "70000"}},
      {"string past the end",
       [](auto& b) { b.add("s", kVString, raw(uint64_t(1) << 40)); },
       {"runs past the end", "wanted at most", "1099511627776"}},
      {"string of 2^64-1",
       [](auto& b) { b.add("s", kVString, raw(UINT64_MAX)); },
       {"runs past the end", "18446744073709551615"}},
      {"value type",
       [](auto& b) { b.add("s", 13, "xxxx"); },
       {"the type of a metadata value is unknown", "0 to 12", "found 13"}},
      {"empty key", [](auto& b) { b.u32("", 1); }, {"key is empty"}},
      {"key twice",
       [](auto& b) { b.u32("llama.block_count", 3); },
       {"\"llama.block_count\" stands twice", "another at byte"}},
      {"boolean 2", [](auto& b) { b.add("b", kVBool, raw(uint8_t(2))); }, {"0 or 1", "found 2"}},
      {"array of 2^60",
       [](auto& b) { b.array("x", kVU32, uint64_t(1) << 60, "abcd"); },
       {"longer than the file", "1152921504606846976"}},
      {"array of 2^61 strings",
       [](auto& b) { b.array("x", kVString, uint64_t(1) << 61, ""); },
       {"longer than the file"}},
      {"array element type", [](auto& b) { b.array("x", 99, 1, "abcd"); }, {"element type", "found 99"}},
      {"arrays nested too deep",
       [](auto& b) {
         std::string inner = raw(uint32_t(kVU8)) + raw(uint64_t(0));
         for (int i = 0; i < 6; i++) inner = raw(uint32_t(kVArray)) + raw(uint64_t(1)) + inner;
         b.add("x", kVArray, inner);
       },
       {"nested too deep", "at most 4"}},
      {"alignment 0", [](auto& b) { b.u32("general.alignment", 0); }, {"general.alignment", "found 0"}},
      {"alignment 24", [](auto& b) { b.u32("general.alignment", 24); }, {"a power of two from 8 on", "found 24"}},
      {"alignment is a string",
       [](auto& b) { b.str("general.alignment", "32"); },
       {"general.alignment", "an integer, found string"}},
      {"no axes", [](auto& b) { b.find("a").ne = {}; }, {"tensor \"a\"", "axes", "1 to 4", "found 0"}},
      {"five axes",
       [](auto& b) {
         b.find("a").ne = {1, 1, 1, 1, 8};
       },
       {"1 to 4", "found 5"}},
      {"zero axis",
       [](auto& b) {
         b.find("a").ne = {4, 0};
       },
       {"axis 1 is zero", "at least 1", "found 0"}},
      {"axis 2^63", [](auto& b) { b.find("a").ne = {uint64_t(1) << 63}; }, {"overflows", "9223372036854775808"}},
      {"product overflows",
       [](auto& b) {
         b.find("a").ne = {uint64_t(1) << 32, uint64_t(1) << 32};
       },
       {"axis 1", "overflows"}},
      {"bytes overflow", [](auto& b) { b.find("a").ne = {(uint64_t(1) << 62)}; }, {"absurd"}},
      {"tensor name too long",
       [](auto& b) { b.find("a").name = std::string(65, 'n'); },
       {"a tensor name is too long", "at most 64", "65"}},
      {"empty tensor name", [](auto& b) { b.find("a").name = ""; }, {"tensor name is empty"}},
      {"tensor twice", [](auto& b) { b.find("b").name = "a"; }, {"tensor \"a\" stands twice"}},
      {"rows of broken blocks",
       [](auto& b) {
         b.find("b").type = kQ4_0;
         b.find("b").ne = {33};
       },
       {"Q4_0 blocks", "a multiple of 32", "found 33"}},
      {"Q6_K rows",
       [](auto& b) {
         b.find("b").type = kQ6_K;
         b.find("b").ne = {128};
       },
       {"Q6_K blocks", "a multiple of 256", "found 128"}},
      {"offset not aligned",
       [](auto& b) { b.find("b").offset = 40; },
       {"tensor \"b\": the offset is not aligned", "a multiple of 32", "found 40"}},
      {"offset past the end",
       [](auto& b) { b.find("b").offset = uint64_t(1) << 40; },
       {"tensor \"b\"", "past the end", "truncated"}},
      {"offset wraps around", [](auto& b) { b.find("b").offset = ~uint64_t(31); }, {"past the end"}},
      {"size past the end",
       [](auto& b) { b.find("b").ne = {1000}; },
       {"tensor \"b\"", "4000 bytes at 32 within 160", "128 bytes there"}},
      {"one tensor too few", [](auto& b) { b.tensor_count = 1; }, {"byte"}},
      {"bytes after the last tensor",
       [](auto& b) { b.find("b").data += std::string(100, 'x'); },
       {"goes on after its last tensor", "128 bytes more"}},
      {"overlap", [](auto& b) { b.find("b").offset = 0; }, {"tensors", "\"a\"", "\"b\"", "overlap"}},
  };
  return table;
}

TEST(Gguf, RefusesMalformedFilesWithOffsetWantedAndFound) {
  for (const Malformed& m : malformed()) {
    GgufBuilder b = small();
    m.change(b);
    const std::string bytes = b.build();
    const std::string error = error_of([&] { parse(bytes); });
    ASSERT_NE(error, "") << m.name;
    EXPECT_EQ(error.find("exit"), std::string::npos) << m.name << ": " << error;
    for (const std::string& part : m.says) EXPECT_NE(error.find(part), std::string::npos) << m.name << ": " << error;
  }
}

TEST(Gguf, RefusesUnsupportedTensorTypesByName) {
  struct Row {
    uint32_t number;
    const char* name;
  };
  for (Row r : {Row{10, "Q2_K"},
                {11, "Q3_K"},
                {20, "IQ4_NL"},
                {28, "F64"},
                {34, "TQ1_0"},
                {16, "IQ2_XXS"},
                {23, "IQ4_XS"},
                {39, "MXFP4"},
                {40, "NVFP4"},
                {4, "type number 4"},
                {1000, "type number 1000"}}) {
    GgufBuilder b = small();
    b.find("b").type = r.number;
    const std::string bytes = b.build();
    const std::string error = error_of([&] { parse(bytes); });
    EXPECT_NE(error.find(r.name), std::string::npos) << error;
    EXPECT_NE(error.find("F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K"), std::string::npos) << error;
    EXPECT_NE(error.find("tensor \"b\""), std::string::npos) << error;
  }
}

// B12: a header length that is off. Moving either count or any string length by one must be noticed.
TEST(Gguf, NoticesEveryLengthThatIsOffByOne) {
  const std::string good = small().build();
  int changed = 0;
  for (size_t at = 8; at + 8 <= 200; at++) {
    uint64_t v;
    std::memcpy(&v, good.data() + at, 8);
    const bool count = at == 8 || at == 16;
    const bool length = at >= 24 && v > 0 && v < 30 && at + 8 + v < good.size() && good[at + 8] >= 'a' &&
                        good[at + 8] <= 'z' && good[at + 7] == 0;
    if (!count && !length) continue;
    for (int delta : {-1, 1}) {
      std::string bad = good;
      const uint64_t w = v + uint64_t(int64_t(delta));
      std::memcpy(bad.data() + at, &w, 8);
      EXPECT_NE(error_of([&] { parse(bad); }), "") << "length at byte " << at << " " << delta;
      changed++;
    }
  }
  EXPECT_GE(changed, 8);
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string good = small().build();
  const size_t end = parse(good).find_tensor("b")->offset + 128;
  for (size_t n = 0; n < end; n++) {
    // An own allocation of exactly n bytes, so that the address sanitizer sees a read beyond them.
    std::vector<std::byte> bytes(n);
    std::transform(good.begin(), good.begin() + long(n), bytes.begin(), [](char c) { return std::byte(c); });
    const std::string error = error_of([&] { GgufFile::parse(bytes.data(), n, "t.gguf"); });
    ASSERT_NE(error.find("byte "), std::string::npos) << n << ": " << error;
  }
}

TEST(Gguf, RandomDamageNeverReadsOutOfBounds) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  const std::string good = small().build();
  int refused = 0;
  for (int i = 0; i < 3000; i++) {
    std::vector<std::byte> bytes(good.size());
    std::memcpy(bytes.data(), good.data(), good.size());
    for (uint32_t k = 0; k < 1 + rng() % 3; k++) bytes[rng() % 300] = std::byte(rng() % 3 == 0 ? 0xff : rng() & 255);
    const std::string error = error_of([&] {
      const GgufFile f = GgufFile::parse(bytes.data(), bytes.size(), "t.gguf");
      volatile uint8_t sink = 0;
      for (const GgufTensor& t : f.tensors()) sink = uint8_t(t.data[0]) ^ uint8_t(t.data[t.bytes - 1]);
      (void)sink;
    });
    refused += !error.empty();
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace assay
