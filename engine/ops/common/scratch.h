// Memory that an op needs while it runs, one piece per thread.
#pragma once
#include <cstdint>

namespace assay {

/// At least `floats` floats of the calling thread, aligned to 64 bytes, contents undefined. The next call on the same
/// thread may move it. Lives here, outside the op files, because those may not instantiate std templates. Throws
/// std::bad_alloc.
float* thread_scratch(int64_t floats);

}  // namespace assay
