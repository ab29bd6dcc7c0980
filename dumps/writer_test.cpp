#include "dumps/writer.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "dumps/digest.h"
#include "dumps/dump.h"
#include "dumps/error.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  explicit Folder(const char* name) : path(fs::path(testing::TempDir()) / ("assay_writer_" + std::to_string(getpid()) + name)) {
    fs::remove_all(path);
  }
  ~Folder() { fs::remove_all(path); }
};

DumpWriter::Options options(const fs::path& dir, CaptureMode mode = CaptureMode::full) {
  DumpWriter::Options o;
  o.dir = dir;
  o.mode = mode;
  o.sync = false;
  return o;
}

TensorDecl decl(std::string name, DType dtype, std::vector<int64_t> shape, int64_t order = 0) {
  TensorDecl d;
  d.name = std::move(name);
  d.dtype = dtype;
  d.shape = std::move(shape);
  d.order = order;
  d.role = "phase";
  d.axes = {"token", "hidden"};
  d.inputs = {"embed"};
  return d;
}

std::vector<float> noise(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& v : out) v = normal(random);
  return out;
}

TEST(Writer, RoundTripsEveryType) {
  Folder f("types");
  std::vector<unsigned char> bytes(8 * 6);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i % 7);
  {
    DumpWriter w(options(f.path));
    for (int t = 0; t <= int(DType::boolean); ++t) {
      w.write(decl("t" + std::to_string(t), static_cast<DType>(t), {2, 3}), bytes.data());
    }
    w.write(decl("scalar", DType::f64, {}), bytes.data());
    w.write(decl("vector", DType::i64, {6}), bytes.data());
    w.write(decl("empty", DType::f32, {0, 5}), nullptr);
    w.write(decl("no_columns", DType::f32, {5, 0}), nullptr);
    w.write(decl("cube", DType::u8, {2, 3, 4}), bytes.data());
    w.not_materialised({"prompt0/prefill/0/layer.0/gate_proj", "prompt0/prefill/0/layer.0/gate_proj"});
    w.manifest()["engine"] = {{"name", "test"}, {"version", "1"}};
    w.finish();
  }
  const Dump d = Dump::open(f.path);
  EXPECT_EQ(d.kind(), Dump::Kind::dump);
  EXPECT_EQ(d.mode(), CaptureMode::full);
  EXPECT_EQ(d.tensors().size(), 13u + 5u);
  EXPECT_EQ(d.manifest()["engine"]["name"], "test");
  EXPECT_TRUE(d.is_not_materialised("prompt0/prefill/0/layer.0/gate_proj"));
  EXPECT_FALSE(d.is_not_materialised("t0"));
  for (int t = 0; t <= int(DType::boolean); ++t) {
    const DumpTensor* x = d.find("t" + std::to_string(t));
    ASSERT_NE(x, nullptr);
    EXPECT_EQ(x->dtype, static_cast<DType>(t));
    ASSERT_EQ(x->bytes(), 6 * size_of(x->dtype));
    EXPECT_EQ(std::memcmp(x->data, bytes.data(), x->bytes()), 0);
    EXPECT_EQ(x->xxh3_128, xxh3_128_hex(bytes.data(), x->bytes()));
    for (int row = 0; row < 2; ++row) {
      EXPECT_EQ(x->row_hashes[row], xxh3_64(bytes.data() + size_t(row) * x->bytes() / 2, x->bytes() / 2));
    }
    EXPECT_EQ(x->inputs, (std::vector<std::string>{"embed"}));
    EXPECT_EQ(x->axes, (std::vector<std::string>{"token", "hidden"}));
    EXPECT_EQ(x->role, "phase");
  }
  EXPECT_EQ(d.find("scalar")->rows(), 1);
  EXPECT_EQ(d.find("scalar")->columns(), 1);
  EXPECT_EQ(d.find("vector")->rows(), 1);
  EXPECT_EQ(d.find("vector")->row_hashes[0], xxh3_64(bytes.data(), 48));
  EXPECT_EQ(d.find("cube")->rows(), 6);
  EXPECT_EQ(d.find("empty")->elements(), 0);
  EXPECT_EQ(d.find("no_columns")->elements(), 0);
  EXPECT_TRUE(d.verify_hashes().empty());
}

TEST(Writer, ModesCoverTheSameTensorsWithTheSameHashes) {
  const std::vector<float> values = noise(70 * 96, 11);
  std::vector<Dump> dumps;
  Folder folders[] = {Folder("full"), Folder("stats"), Folder("hash")};
  const CaptureMode modes[] = {CaptureMode::full, CaptureMode::stats, CaptureMode::hash};
  for (int m = 0; m < 3; ++m) {
    DumpWriter w(options(folders[m].path, modes[m]));
    w.declare({decl("prompt0/prefill/0/embed", DType::f32, {70, 96}, 0),
               decl("prompt0/prefill/0/layer.0/attn_norm", DType::f32, {35, 192}, 1)});
    // Mode by mode other cuts: neither hashes nor statistics may notice.
    const int64_t step = 1 + 13 * m;
    for (int64_t r = 0; r < 70; r += step) {
      w.write_rows("prompt0/prefill/0/embed", r, std::min(step, 70 - r), values.data() + r * 96);
    }
    w.write_rows("prompt0/prefill/0/layer.0/attn_norm", 0, 35, values.data());
    w.finish();
    dumps.push_back(Dump::open(folders[m].path));
    EXPECT_EQ(dumps.back().mode(), modes[m]);
  }
  ASSERT_EQ(dumps[0].tensors().size(), 2u);
  for (size_t t = 0; t < 2; ++t) {
    const DumpTensor &full = dumps[0].tensors()[t], &stats = dumps[1].tensors()[t], &hash = dumps[2].tensors()[t];
    EXPECT_EQ(full.name, stats.name);
    EXPECT_EQ(full.name, hash.name);
    EXPECT_EQ(full.shape, hash.shape);
    EXPECT_EQ(full.xxh3_128, stats.xxh3_128);
    EXPECT_EQ(full.xxh3_128, hash.xxh3_128);
    EXPECT_EQ(full.xxh3_128, xxh3_128_hex(values.data(), values.size() * 4));
    for (int64_t r = 0; r < full.rows(); ++r) {
      EXPECT_EQ(full.row_hashes[r], stats.row_hashes[r]);
      EXPECT_EQ(full.row_hashes[r], hash.row_hashes[r]);
      EXPECT_EQ(full.row_hashes[r], xxh3_64(values.data() + r * full.columns(), size_t(full.columns()) * 4));
    }
    ASSERT_TRUE(full.stats && stats.stats);
    EXPECT_FALSE(hash.stats);
    EXPECT_EQ(full.stats->mean, stats.stats->mean);
    EXPECT_EQ(full.stats->rms, stats.stats->rms);
    EXPECT_NE(full.data, nullptr);
    EXPECT_EQ(stats.data, nullptr);
    EXPECT_EQ(hash.data, nullptr);
    double sum = 0, squares = 0, least = values[0], most = values[0];
    for (float v : values) {
      sum += v, squares += double(v) * v;
      least = std::min<double>(least, v), most = std::max<double>(most, v);
    }
    EXPECT_NEAR(full.stats->mean, sum / double(values.size()), 1e-12);
    EXPECT_NEAR(full.stats->rms, std::sqrt(squares / double(values.size())), 1e-12);
    EXPECT_EQ(full.stats->min, least);
    EXPECT_EQ(full.stats->max, most);
  }
}

TEST(Writer, NaNsAreCanonicalEverywhere) {
  const uint32_t f32[4] = {0xffc12345, 0x7f800001, 0xff800000, 0x3f800000};  // NaN, signalling NaN, -Inf, 1
  const uint64_t f64[4] = {0xfff8000000000001, 0x7ff0000000000001, 0x7ff0000000000000, 0x4000000000000000};
  const uint16_t f16[4] = {0xfe01, 0x7c01, 0x7c00, 0x3c00}, bf16[4] = {0xffc1, 0x7f81, 0x7f80, 0x3f80};
  Folder f("nan"), g("nan_large");
  {
    DumpWriter w(options(f.path));
    w.write(decl("f32", DType::f32, {1, 4}), f32);
    w.write(decl("f64", DType::f64, {1, 4}), f64);
    w.write(decl("f16", DType::f16, {1, 4}), f16);
    w.write(decl("bf16", DType::bf16, {1, 4}), bf16);
    w.write(decl("u32", DType::u32, {1, 4}), f32);
    w.finish();
  }
  const Dump d = Dump::open(f.path);
  const auto at = [&](const char* name, size_t i, size_t size) {
    uint64_t v = 0;
    std::memcpy(&v, d.find(name)->data + i * size, size);
    return v;
  };
  EXPECT_EQ(at("f32", 0, 4), 0x7fc00000u);
  EXPECT_EQ(at("f32", 1, 4), 0x7fc00000u);
  EXPECT_EQ(at("f32", 2, 4), 0xff800000u);
  EXPECT_EQ(at("f64", 0, 8), 0x7ff8000000000000u);
  EXPECT_EQ(at("f64", 1, 8), 0x7ff8000000000000u);
  EXPECT_EQ(at("f64", 2, 8), 0x7ff0000000000000u);
  EXPECT_EQ(at("f16", 0, 2), 0x7e00u);
  EXPECT_EQ(at("f16", 1, 2), 0x7e00u);
  EXPECT_EQ(at("f16", 2, 2), 0x7c00u);
  EXPECT_EQ(at("bf16", 0, 2), 0x7fc0u);
  EXPECT_EQ(at("bf16", 1, 2), 0x7fc0u);
  EXPECT_EQ(at("bf16", 3, 2), 0x3f80u);
  EXPECT_EQ(at("u32", 0, 4), 0xffc12345u) << "integers are left alone";
  for (const char* name : {"f32", "f64", "f16", "bf16"}) {
    EXPECT_EQ(d.find(name)->stats->non_finite, 3) << name;
    EXPECT_EQ(d.find(name)->stats->min, name[0] == 'f' && name[1] == '6' ? 2.0 : 1.0) << name;
  }
  // A payload of another machine's NaN changes no hash.
  const uint32_t other[4] = {0x7fc00000, 0xffffffff, 0xff800000, 0x3f800000};
  DumpWriter w(options(g.path, CaptureMode::hash));
  w.write(decl("f32", DType::f32, {1, 4}), other);
  w.finish();
  EXPECT_EQ(Dump::open(g.path).find("f32")->xxh3_128, d.find("f32")->xxh3_128);
}

TEST(Writer, StatisticsOfHalfTypesAndOverflow) {
  Folder f("half");
  const uint16_t f16[4] = {0x0001, 0x8001, 0x7bff, 0xbc00};  // 2^-24, -2^-24, 65504, -1
  const uint16_t bf16[2] = {0x4049, 0xc049};                 // 3.140625, -3.140625
  const double huge[2] = {1.7e308, 1.7e308};
  const float nan[1] = {std::numeric_limits<float>::quiet_NaN()};
  DumpWriter w(options(f.path));
  w.write(decl("f16", DType::f16, {4}), f16);
  w.write(decl("bf16", DType::bf16, {2}), bf16);
  w.write(decl("f64", DType::f64, {2}), huge);
  w.write(decl("nan", DType::f32, {1}), nan);
  w.finish();
  const Dump d = Dump::open(f.path);
  EXPECT_EQ(d.find("f16")->stats->max, 65504.0);
  EXPECT_EQ(d.find("f16")->stats->mean, 65503.0 / 4);
  EXPECT_EQ(d.find("bf16")->stats->rms, 3.140625);
  EXPECT_EQ(d.find("bf16")->stats->mean, 0.0);
  EXPECT_EQ(d.find("f64")->stats->rms, std::numeric_limits<double>::max()) << "bounded, since JSON has no infinity";
  EXPECT_EQ(d.find("nan")->stats->non_finite, 1);
  EXPECT_EQ(d.find("nan")->stats->max, 0.0);
}

TEST(Writer, LargeSetsStreamIntoTheirOwnFileAndSmallOnesShare) {
  Folder f("large");
  const int64_t rows = 3000, columns = 4096;  // 49 MB
  const std::vector<float> values = noise(size_t(columns) * 64, 5);
  {
    DumpWriter w(options(f.path));
    w.write(decl("small/0", DType::f32, {4, 8}), values.data());
    w.declare({decl("large/a", DType::u8, {64, 3}), decl("large/b", DType::f32, {rows, columns})});
    // Declared while others are in progress.
    w.declare({decl("small/1", DType::f64, {2}), decl("small/2", DType::f32, {4, 8})});
    w.write_rows("large/a", 0, 10, values.data());
    for (int64_t r = 0; r < rows; r += 64) w.write_rows("large/b", r, std::min<int64_t>(64, rows - r), values.data());
    w.write_rows("small/1", 0, 1, values.data());
    w.write_rows("large/a", 10, 54, values.data());
    w.write_rows("small/2", 0, 4, values.data());
    w.write_rows("small/1", 1, 1, values.data());
    w.finish();
  }
  const Dump d = Dump::open(f.path);
  EXPECT_EQ(d.manifest()["files"].size(), 2u);
  EXPECT_TRUE(d.verify_hashes().empty());
  for (const fs::directory_entry& e : fs::directory_iterator(f.path)) {
    EXPECT_LE(e.path().filename().string().size(), 24u) << "names stay short (C14)";
  }
  const DumpTensor* b = d.find("large/b");
  EXPECT_EQ(std::memcmp(b->data + size_t(rows - 1) * columns * 4, values.data() + size_t((rows - 1) % 64) * columns,
                        size_t(columns) * 4),
            0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data) % 4, 0u);
}

TEST(Writer, ManySmallSetsStartANewFileWhenOneIsFull) {
  Folder f("gather");
  std::vector<float> values(3 << 20);  // 12 MiB
  DumpWriter w(options(f.path));
  for (int i = 0; i < 5; ++i) {
    values[0] = float(i);
    w.write(decl("t" + std::to_string(i), DType::f32, {3, 1 << 20}), values.data());
  }
  w.finish();
  const Dump d = Dump::open(f.path);
  EXPECT_EQ(d.manifest()["files"].size(), 3u);
  for (int i = 0; i < 5; ++i) {
    float first;
    std::memcpy(&first, d.find("t" + std::to_string(i))->data, 4);
    EXPECT_EQ(first, float(i));
  }
}

TEST(Writer, UnfinishedDumpIsNoDump) {
  Folder f("unfinished");
  const float v[4] = {1, 2, 3, 4};
  {
    DumpWriter w(options(f.path));
    w.declare({decl("a", DType::f32, {2, 2})});
    w.write_rows("a", 0, 1, v);
    EXPECT_THROW(w.finish(), Error) << "an incomplete tensor is named";
  }
  EXPECT_FALSE(fs::exists(f.path / "manifest.json"));
  try {
    Dump::open(f.path);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::malformed);
    EXPECT_NE(std::string(e.what()).find("unfinished"), std::string::npos) << e.what();
  }
  // The next writer may take the folder.
  DumpWriter w(options(f.path));
  w.write(decl("a", DType::f32, {2, 2}), v);
  w.finish();
  EXPECT_EQ(Dump::open(f.path).tensors().size(), 1u);
}

// A process killed in the middle: what it leaves is refused by readers and replaced by the next writer.
TEST(Writer, KilledWriterLeavesNoDump) {
  Folder f("killed");
  const std::vector<float> values = noise(1 << 20, 3);
  const pid_t child = fork();
  if (child == 0) {
    DumpWriter w(options(f.path));
    w.declare({decl("big", DType::f32, {16, 1 << 20})});
    w.write_rows("big", 0, 1, values.data());
    raise(SIGKILL);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_TRUE(fs::exists(f.path / "part-0000.safetensors"));
  EXPECT_THROW(Dump::open(f.path), Error);
  DumpWriter w(options(f.path));
  w.write(decl("a", DType::f32, {1, 16}), values.data());
  w.finish();
  EXPECT_EQ(Dump::open(f.path).tensors().size(), 1u);
}

TEST(Writer, RefusesFoldersThatAreNotItsOwn) {
  const float v[1] = {1};
  Folder f("foreign");
  fs::create_directories(f.path);
  std::ofstream(f.path / "thesis.txt") << "years of work";
  EXPECT_THROW(DumpWriter w(options(f.path)), Error);
  EXPECT_TRUE(fs::exists(f.path / "thesis.txt"));

  Folder g("bare");
  fs::create_directories(g.path);
  std::ofstream(g.path / "part-0000.safetensors") << "somebody's";
  EXPECT_THROW(DumpWriter w(options(g.path)), Error);
  EXPECT_TRUE(fs::exists(g.path / "part-0000.safetensors"));

  Folder h("finished");
  for (int i = 0; i < 2; ++i) {
    DumpWriter::Options o = options(h.path);
    o.replace = i == 1;
    DumpWriter w(o);
    w.write(decl("t" + std::to_string(i), DType::f32, {1}), v);
    w.finish();
  }
  const Dump d = Dump::open(h.path);
  EXPECT_EQ(d.find("t0"), nullptr);
  EXPECT_NE(d.find("t1"), nullptr);
  try {
    DumpWriter w(options(h.path));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
  }
  EXPECT_NE(Dump::open(h.path).find("t1"), nullptr) << "the refusal left it alone";
}

TEST(Writer, MisuseIsNamed) {
  Folder f("misuse");
  const float v[8] = {};
  DumpWriter w(options(f.path));
  w.declare({decl("a", DType::f32, {4, 2})});
  const auto fails = [&](const char* what, auto&& call) {
    try {
      call();
      ADD_FAILURE() << what;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::internal) << what << ": " << e.what();
    }
  };
  fails("twice", [&] { w.declare({decl("a", DType::f32, {1})}); });
  fails("twice in a set", [&] { w.declare({decl("b", DType::f32, {1}), decl("b", DType::f32, {1})}); });
  fails("gap", [&] { w.write_rows("a", 1, 1, v); });
  fails("too many", [&] { w.write_rows("a", 0, 5, v); });
  fails("negative", [&] { w.write_rows("a", 0, -1, v); });
  fails("unknown", [&] { w.write_rows("zzz", 0, 1, v); });
  fails("blank in a name", [&] { w.declare({decl("a b", DType::f32, {1})}); });
  fails("empty name", [&] { w.declare({decl("", DType::f32, {1})}); });
  fails("long name", [&] { w.declare({decl(std::string(513, 'x'), DType::f32, {1})}); });
  fails("negative shape", [&] { w.declare({decl("n", DType::f32, {-1})}); });
  fails("overflow", [&] { w.declare({decl("n", DType::f32, {int64_t{1} << 62, 4})}); });
  w.write_rows("a", 0, 4, v);
  fails("after the end", [&] { w.write_rows("a", 4, 1, v); });
  w.manifest()["tensors"] = 1;
  fails("a key of the format", [&] { w.finish(); });
}

TEST(Writer, SizeLimit) {
  Folder f("limit");
  DumpWriter::Options o = options(f.path);
  o.max_bytes = 1000;
  DumpWriter w(o);
  const std::vector<float> v(256);
  w.write(decl("a", DType::f32, {200}), v.data());
  try {
    w.write(decl("b", DType::f32, {51}), v.data());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
  }
}

// C14: a full disk is said at declare(), before the pass runs, with the file, the bytes needed and the bytes free.
void expect_disk_full(const fs::path& dir, int64_t bytes) {
  try {
    DumpWriter::Options o = options(dir);
    o.when_full = "write less (--mode stats)";
    DumpWriter w(o);
    w.declare({decl("big", DType::u8, {bytes / 1024, 1024})});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_EQ(e.kind(), ErrorKind::io);
    EXPECT_NE(text.find("part-0000.safetensors"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(bytes / 1'000'000)), std::string::npos) << text;
    EXPECT_NE(text.find("bytes free"), std::string::npos) << text;
    EXPECT_NE(text.find("write less (--mode stats)"), std::string::npos) << text;
  }
  EXPECT_THROW(Dump::open(dir), Error);
  EXPECT_FALSE(fs::exists(dir / "part-0000.safetensors")) << "the space is given back";
}

TEST(Writer, FullDisk) {
  Folder f("full_disk");
  fs::create_directories(f.path);
  if (geteuid() == 0 && mount("tmpfs", f.path.c_str(), "tmpfs", 0, "size=4m") == 0) {
    expect_disk_full(f.path / "out", 64'000'000);
    expect_disk_full(f.path / "out2", 16'000'000);  // a gathered set is reserved as well
    umount(f.path.c_str());
    return;
  }
  // Without the right to mount: the limit of file sizes says the same in the same place.
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit low = old;
  low.rlim_cur = 4'000'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  expect_disk_full(f.path / "out", 64'000'000);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
}

TEST(Writer, FolderThatCannotBeMade) {
  Folder f("file_in_the_way");
  std::ofstream(f.path) << "x";
  try {
    DumpWriter w(options(f.path / "sub"));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::io);
  }
}

}  // namespace
}  // namespace assay
