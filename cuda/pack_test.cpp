// pack_weight and unpack_weight: the file's bytes come back, for every type and for widths with padding of every kind; a packed
// matrix is no larger than layout.cuh says.
#include "cuda/test_support.h"

namespace assay {
namespace {

using namespace test;

constexpr WeightType kTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0, WeightType::q4_0, WeightType::q4_1,
                                 WeightType::q5_0, WeightType::q5_1, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

TEST(CudaPack, UnpackGivesTheBytesBack) {
  Rng rng = seeded(901);
  const Device device;
  for (WeightType type : kTypes) {
    for (int i = 0; i < 12; i++) {
      const int64_t unit = block_elements(type), rows = uniform(rng, 1, 20);
      const int64_t columns = unit * (unit == 1 ? uniform(rng, 1, 300) : uniform(rng, 1, i < 6 ? 9 : 70) * (unit == 32 || i < 9 ? 1 : 4));
      HostWeight w = random_weight(rng, type, rows, columns);
      for (std::byte& b : w.bytes) b = std::byte(rng());  // any bits at all, scales included
      const PackedWeight packed(device, w.matrix);
      Buffer<uint8_t> raw(device, w.bytes.size());
      device.ok(device.module().unpack_weight(device, int32_t(type), rows, columns, packed.get().data, raw.get()));
      const std::vector<uint8_t> got = raw.download();
      ASSERT_EQ(std::memcmp(got.data(), w.bytes.data(), got.size()), 0) << name_of(type) << " " << rows << " x " << columns;
    }
  }
}

TEST(CudaPack, BytesPerWeight) {
  const Device device;
  for (WeightType type : kTypes) {
    const uint64_t file = row_bytes(type, 4096) * 1024;
    const uint64_t bytes = device.module().weight_bytes(device, int32_t(type), 1024, 4096);
    EXPECT_GE(bytes, file) << name_of(type);
    EXPECT_LE(double(bytes), 1.03 * double(file)) << name_of(type);
  }
}

TEST(CudaPack, RefusesWhatNoFileHolds) {
  const Device device;
  const auto bytes = [&](int32_t type, int64_t rows, int64_t columns) { return device.module().weight_bytes(device, type, rows, columns); };
  EXPECT_EQ(bytes(ASSAY_TYPES, 1, 256), 0u);
  EXPECT_EQ(bytes(-1, 1, 256), 0u);
  EXPECT_EQ(bytes(ASSAY_Q4_0, 1, 48), 0u);
  EXPECT_EQ(bytes(ASSAY_Q4_K, 1, 288), 0u);
  EXPECT_EQ(bytes(ASSAY_Q4_0, 0, 32), 0u);
  EXPECT_EQ(bytes(ASSAY_F32, 1, 0), 0u);
  EXPECT_EQ(bytes(ASSAY_F32, int64_t(1) << 40, int64_t(1) << 40), 0u);
  EXPECT_EQ(device.module().pack_weight(device, ASSAY_Q4_K, 1, 288, nullptr, nullptr), ASSAY_REFUSED);
  EXPECT_EQ(device.module().unpack_weight(device, ASSAY_Q4_K, 1, 288, nullptr, nullptr), ASSAY_REFUSED);
}

}  // namespace
}  // namespace assay
