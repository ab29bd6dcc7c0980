// The floating-point environment that NUMERICS.md asks for: round to nearest, denormals on.
#pragma once

namespace assay {

/// A foreign library built with fast-math can set flush-to-zero for the whole process when it is loaded. Called at
/// engine start and by every worker thread. Throws Error{internal} naming `where` and the bits that are set.
void require_clean_float_environment(const char* where);

}  // namespace assay
