#include "dumps/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "dumps/error.h"

namespace assay {
namespace {

std::string file_of(const std::string& header, size_t data_bytes, uint64_t length) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[size_t(i)] = static_cast<char>(length >> (8 * i));
  out += header;
  out.append(data_bytes, '\x11');
  return out;
}
std::string file_of(const std::string& header, size_t data_bytes) { return file_of(header, data_bytes, header.size()); }

Safetensors parse(const std::string& bytes) {
  return Safetensors::parse(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "test");
}

TEST(Safetensors, ReadsTensorsInOffsetOrder) {
  const std::string bytes = file_of(
      R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},"__metadata__":{"k":"v"},)"
      R"("a":{"shape":[],"data_offsets":[0,8],"dtype":"F64"},"e":{"dtype":"F32","shape":[0,7],"data_offsets":[20,20]},)"
      R"("m":{"dtype":"BOOL","shape":[3],"data_offsets":[20,23]}}   )",
      23);
  const Safetensors s = parse(bytes);
  ASSERT_EQ(s.tensors().size(), 4u);
  EXPECT_EQ(s.tensors()[0].name, "a");
  EXPECT_EQ(s.tensors()[0].elements(), 1);
  EXPECT_EQ(s.tensors()[1].name, "b");
  EXPECT_EQ(s.tensors()[1].dtype, DType::bf16);
  EXPECT_EQ(s.tensors()[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(s.find("b")->data - s.find("a")->data, 8);
  EXPECT_EQ(s.find("e")->bytes, 0u);
  EXPECT_EQ(s.find("m")->dtype, DType::boolean);
  EXPECT_EQ(s.find("absent"), nullptr);
  EXPECT_EQ(s.metadata().at("k"), "v");
}

TEST(Safetensors, EmptyObjectIsAFileWithoutTensors) { EXPECT_TRUE(parse(file_of("{}", 0)).tensors().empty()); }

struct Bad {
  const char* what;
  std::string bytes;
  const char* says;  // part of the message
};

TEST(Safetensors, RefusesEveryMalformedFile) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& range, size_t data) {
    return file_of(R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + range + "}}", data);
  };
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  std::string cut = file_of("{" + a + "}", 4);
  std::string many_axes;
  for (int i = 0; i < 100; ++i) many_axes += "1,";
  const Bad table[] = {
      {"empty file", "", "too short"},
      {"seven bytes", std::string(7, '\0'), "too short"},
      {"no header", std::string(8, '\0'), "not a JSON object"},
      {"header longer than the file", file_of("{}", 0, 3), "longer than the file"},
      {"absurd header length", file_of("{}", 0, 0x7fffffffffffffff), "absurd header length"},
      {"header length all ones", file_of("{}", 0, ~uint64_t{0}), "absurd header length"},
      {"header cut short", file_of("{" + a + "}", 4, 10), "not JSON"},
      {"not an object", file_of("[]", 0), "not a JSON object"},
      {"garbage behind the object", file_of("{} x", 0), "not JSON"},
      {"bad UTF-8", file_of("{\"\xff\":1}", 0), "not JSON"},
      {"truncated data", cut.substr(0, cut.size() - 1), "outside the file"},
      {"trailing bytes", cut + "x", "behind the last tensor"},
      {"duplicate name", file_of("{" + a + "," + a + "}", 4), "appears twice"},
      {"duplicate key", file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4), "appears twice"},
      {"duplicate metadata", file_of(R"({"__metadata__":{"a":"1"},"__metadata__":{}})", 0), "appears twice"},
      {"metadata not strings", file_of(R"({"__metadata__":{"a":1}})", 0), "wanted a string"},
      {"metadata nested", file_of(R"({"__metadata__":{"a":{}}})", 0), "unexpected value"},
      {"overlap", file_of("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6), "overlap"},
      {"same range twice", file_of("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4), "overlap"},
      {"gap", file_of("{" + a + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})", 6), "gap"},
      {"gap at the start", one("U8", "[1]", "[1,2]", 2), "gap"},
      {"begin behind end", one("U8", "[1]", "[2,1]", 2), "outside the file"},
      {"shape too large for the range", one("F32", "[2]", "[0,4]", 4), "disagree"},
      {"shape overflow", one("F32", "[4611686018427387904,4]", "[0,0]", 0), "overflows"},
      {"shape overflow hidden by a zero", one("F32", "[4611686018427387904,4611686018427387904,0]", "[0,0]", 0), "overflows"},
      {"number beyond 64 bits", one("U8", "[99999999999999999999]", "[0,1]", 1), "unexpected value"},
      {"number beyond 63 bits", one("U8", "[18446744073709551615]", "[0,1]", 1), "absurd number"},
      {"negative shape", one("U8", "[-1]", "[0,1]", 1), "negative"},
      {"negative offset", one("U8", "[1]", "[-1,0]", 1), "negative"},
      {"fraction", one("U8", "[1.0]", "[0,1]", 1), "unexpected value"},
      {"one offset", one("U8", "[1]", "[0]", 1), "2 numbers"},
      {"three offsets", one("U8", "[1]", "[0,1,2]", 1), "2 numbers"},
      {"shape is no array", one("U8", "1", "[0,1]", 1), "unexpected value"},
      {"nested shape", one("U8", "[[1]]", "[0,1]", 1), "unexpected value"},
      {"unknown dtype", one("F8_E4M3", "[1]", "[0,1]", 1), "unsupported dtype"},
      {"no dtype", file_of(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1), "has no dtype"},
      {"no shape", file_of(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1), "has no shape"},
      {"no offsets", file_of(R"({"t":{"dtype":"U8","shape":[1]}})", 1), "has no data_offsets"},
      {"unknown key", file_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1), "unknown key"},
      {"tensor is null", file_of(R"({"t":null})", 0), "unexpected value"},
      {"deep nesting", file_of("{\"t\":" + std::string(1'000'000, '['), 0), "unexpected value"},
      {"deep objects", file_of("{\"t\":{\"dtype\":" + std::string(100'000, '{'), 0), "unexpected value"},
      {"too many axes", one("U8", "[" + many_axes + "1]", "[0,1]", 1), "too many"},
  };
  for (const Bad& bad : table) {
    try {
      parse(bad.bytes);
      ADD_FAILURE() << bad.what << ": accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::malformed) << bad.what;
      EXPECT_NE(std::string(e.what()).find(bad.says), std::string::npos) << bad.what << ": " << e.what();
      EXPECT_NE(std::string(e.what()).find("byte "), std::string::npos) << bad.what << ": " << e.what();
      EXPECT_LT(std::string(e.what()).size(), 1000u) << bad.what;
    }
  }
}

// Every prefix and many random mutations of a good file: accepted or refused, never anything else (ASan watches).
TEST(Safetensors, SurvivesTruncationAndMutation) {
  const std::string good = file_of(
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("y":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}})",
      24);
  ASSERT_EQ(parse(good).tensors().size(), 2u);
  for (size_t n = 0; n < good.size(); ++n) EXPECT_THROW(parse(good.substr(0, n)), Error) << n;
  const unsigned seed = 20240611;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  size_t refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (unsigned k = 0; k <= random() % 3; ++k) bytes[random() % (good.size() - 24)] = static_cast<char>(random());
    try {
      const Safetensors parsed = parse(bytes);
      for (const TensorView& t : parsed.tensors()) {
        uint8_t sum = 0;
        for (size_t b = 0; b < t.bytes; ++b) sum = static_cast<uint8_t>(sum + std::to_integer<uint8_t>(t.data[b]));
        volatile uint8_t sink = sum;
        (void)sink;
      }
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::malformed);
      ++refused;
    }
  }
  EXPECT_GT(refused, 15000u);
}

// The seeds of the fuzz target, so that they are run without a fuzzer too.
TEST(Safetensors, FuzzCorpus) {
  int accepted = 0, refused = 0;
  for (const auto& e : std::filesystem::directory_iterator(std::string(ASSAY_DUMPS_DIR) + "/fuzz_corpus/safetensors")) {
    try {
      Safetensors::open(e.path());
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::malformed) << e.path();
      ++refused;
    }
  }
  EXPECT_GE(accepted, 5);
  EXPECT_GE(refused, 4);
}

TEST(Safetensors, FilesThatAreNoFiles) {
  EXPECT_THROW(MappedFile::open("/nonexistent/x.safetensors"), Error);
  try {
    Safetensors::open(testing::TempDir());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::malformed);
  }
  const std::string path = testing::TempDir() + "/empty_" + std::to_string(getpid()) + ".safetensors";
  std::ofstream(path).close();
  EXPECT_THROW(Safetensors::open(path), Error);
  std::remove(path.c_str());
}

TEST(Safetensors, OpensAFile) {
  const std::string path = testing::TempDir() + "/good_" + std::to_string(getpid()) + ".safetensors";
  const std::string bytes = file_of(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  std::ofstream(path, std::ios::binary) << bytes;
  const Safetensors s = Safetensors::open(path);
  EXPECT_EQ(s.tensors()[0].bytes, 4u);
  EXPECT_EQ(s.file()->size(), bytes.size());
  std::remove(path.c_str());
}

}  // namespace
}  // namespace assay
