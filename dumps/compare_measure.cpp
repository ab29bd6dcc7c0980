// The work of a comparison: reading values, in parallel, in pieces of bounded size.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string_view>
#include <unordered_set>

#include "dumps/compare_plan.h"
#include "dumps/jobs.h"
#include "dumps/metrics.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#endif

namespace assay::comparing {
namespace {

constexpr int64_t kPieceBytes = int64_t(4) << 20;  // of one side; whole rows

struct Piece {
  size_t index;  // of the pair or tensor
  int64_t first_row, rows;
};

std::vector<Piece> cut(size_t index, const DumpTensor& t) {
  const int64_t row_bytes = std::max<int64_t>(1, t.columns() * int64_t(size_of(t.dtype)));
  const int64_t step = std::max<int64_t>(1, kPieceBytes / row_bytes);
  std::vector<Piece> out;
  for (int64_t r = 0; r < t.rows(); r += step) out.push_back({index, r, std::min(step, t.rows() - r)});
  return out;
}

/// Maps the pages of a piece in one call instead of a fault for each few. Fails harmlessly on older kernels.
void prefetch(const DumpTensor& t, const Piece& p) {
#if defined(__linux__)
  static const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  const size_t row = size_t(t.columns()) * size_of(t.dtype);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(t.data + size_t(p.first_row) * row);
  const uintptr_t end = begin + size_t(p.rows) * row, from = begin / page * page;
  if (end - begin >= 64 * page) madvise(reinterpret_cast<void*>(from), end - from, MADV_POPULATE_READ);
#else
  (void)t, (void)p;
#endif
}

/// Gives pages of the page cache back after use, so that comparing large dumps does not fill memory with what is only read
/// once. Only for pages of read-only file mappings: those come back from the file, whereas other memory would be lost.
class PageRelease {
 public:
  explicit PageRelease(int64_t total_bytes) {
#if defined(__linux__)
    if (total_bytes < kReleaseFrom) return;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      unsigned long begin = 0, end = 0, inode = 0;
      char rights[5] = "";
      if (std::sscanf(line.c_str(), "%lx-%lx %4s %*s %*s %lu", &begin, &end, rights, &inode) != 4) continue;
      if (std::string_view(rights, 3) == "r--" && inode != 0) ranges_.emplace_back(begin, end);
    }
#else
    (void)total_bytes;
#endif
  }
  void operator()(const DumpTensor& t, const Piece& p) const {
#if defined(__linux__)
    if (ranges_.empty()) return;
    static const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
    const size_t row = size_t(t.columns()) * size_of(t.dtype);
    const uintptr_t data = reinterpret_cast<uintptr_t>(t.data + size_t(p.first_row) * row);
    const uintptr_t begin = (data + page - 1) / page * page, end = (data + size_t(p.rows) * row) / page * page;
    auto it = std::upper_bound(ranges_.begin(), ranges_.end(), std::pair(begin, ~uintptr_t(0)));  // sorted as the kernel lists them
    if (begin >= end || it == ranges_.begin() || end > (--it)->second) return;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
#else
    (void)t, (void)p;
#endif
  }

 private:
  static constexpr int64_t kReleaseFrom = int64_t(256) << 20;
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges_;
};

}  // namespace

std::unordered_map<std::string, double> usual_scales(const Dump& base, const std::vector<std::string>& wanted, int threads) {
  const std::unordered_set<std::string> keys(wanted.begin(), wanted.end());
  std::unordered_map<std::string, double> out;
  std::vector<Piece> pieces;
  std::vector<double*> places;
  for (size_t i = 0; i < base.tensors().size(); i++) {
    const DumpTensor& t = base.tensors()[i];
    if (!is_float(t.dtype)) continue;
    const std::string key = scale_key(t.name);
    if (!keys.contains(key)) continue;
    double& scale = out[key];
    if (t.stats) {
      scale = std::max({scale, std::fabs(t.stats->min), std::fabs(t.stats->max)});
    } else if (t.data && t.elements() > 0) {
      for (const Piece& p : cut(i, t)) {
        pieces.push_back(p);
        places.push_back(&scale);  // references into an unordered_map stay valid
      }
    }
  }
  int64_t total = 0;
  for (const Piece& p : pieces) total += p.rows * base.tensors()[p.index].columns() * int64_t(size_of(base.tensors()[p.index].dtype));
  const PageRelease release(total);
  std::vector<double> found(pieces.size());
  run_jobs(threads, pieces.size(), [&](size_t i) {
    const DumpTensor& t = base.tensors()[pieces[i].index];
    prefetch(t, pieces[i]);
    found[i] = max_abs_finite(t, pieces[i].first_row, pieces[i].rows);
    release(t, pieces[i]);
  });
  for (size_t i = 0; i < pieces.size(); i++) *places[i] = std::max(*places[i], found[i]);
  return out;
}

void measure_pairs(Plan& plan, const CompareOptions& options) {
  std::vector<Piece> pieces;
  int64_t total = 0;
  for (size_t i = 0; i < plan.pairs.size(); i++) {
    if (!plan.pairs[i].measure) continue;
    total += plan.pairs[i].bytes();
    for (const Piece& p : cut(i, plan.pairs[i].base)) pieces.push_back(p);
  }
  const PageRelease release(total);
  // One result per piece; joined in order afterwards, so that the outcome is that of one thread.
  std::vector<TensorMetrics> results(pieces.size());
  std::vector<std::vector<double>> row_errors(pieces.size());
  std::mutex mutex;
  int64_t done = 0;
  run_jobs(options.threads, pieces.size(), [&](size_t i) {
    const Piece& piece = pieces[i];
    const Pair& p = plan.pairs[piece.index];
    prefetch(p.base, piece);
    prefetch(p.target, piece);
    if (p.positions > 0) row_errors[i].resize(size_t(piece.rows));
    results[i] = measure_rows(p.base, p.target, piece.first_row, piece.rows, p.scale,
                              p.positions > 0 ? row_errors[i].data() : nullptr);
    release(p.base, piece);
    release(p.target, piece);
    if (!options.progress) return;
    const std::lock_guard lock(mutex);
    done += piece.rows * p.base.columns() * int64_t(size_of(p.base.dtype) + size_of(p.target.dtype));
    options.progress(done, total);
  });
  for (size_t i = 0; i < pieces.size(); i++) {
    const Pair& p = plan.pairs[pieces[i].index];
    CompareRecord& r = plan.records[p.record];
    std::optional<TensorMetrics>& m = r.metrics;
    if (!m || pieces[i].first_row == 0) {
      m = results[i];
    } else {
      merge(*m, results[i]);
    }
    if (p.positions == 0) continue;
    if (pieces[i].first_row == 0) {
      r.rows_per_bin = (p.positions + kMostBins - 1) / kMostBins;
      r.row_max_rel.assign(size_t((p.positions + r.rows_per_bin - 1) / r.rows_per_bin), 0);
    }
    for (int64_t row = 0; row < pieces[i].rows; row++) {
      double& bin = r.row_max_rel[size_t((pieces[i].first_row + row) % p.positions / r.rows_per_bin)];
      bin = std::max(bin, row_errors[i][size_t(row)]);
    }
  }
}

}  // namespace assay::comparing
