// Sharing work out: plain threads, started and joined per call.
#pragma once
#include <cstddef>
#include <functional>

namespace assay {

/// Calls job(0..n-1) on at most `threads` threads (0: all cores). Items are taken from a counter, so that results may not
/// depend on who takes which. The first exception is thrown again once all have ended; items not begun by then are left out.
void run_jobs(int threads, size_t n, const std::function<void(size_t)>& job);

}  // namespace assay
