// Large blocks in huge pages where the system gives them: weights are read in one stream per token, and with small pages a
// tenth of the time goes into finding them (bench/LEDGER.md).
#pragma once
#include <cstddef>
#include <memory>

namespace assay {

/// `bytes` aligned to 2 MiB, contents undefined; null where the memory can't be had. Freed with the last owner.
std::shared_ptr<std::byte[]> allocate_large(size_t bytes);

}  // namespace assay
