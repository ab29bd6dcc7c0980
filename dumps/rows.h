// Bringing another engine's physical passes to logical rows. Chunked, batched, padded and speculative runs mix rows of many
// prompts; a `rows` table says whose they are. Format: FORMAT.md "Rows tables".
#pragma once
#include "dumps/dump.h"

namespace assay {

enum class RowKind : int64_t {
  token = 0,    // the row of (prompt, position) in the sequence as it finally stands; accepted drafts are tokens
  padding = 1,  // belongs to nobody: dropped
  draft = 2,    // proposed and rejected: dropped
};

/// The dump with all tensors under logical names: rows of a tensor `<prefix>/<rest>` that has a table go, by (prompt,
/// position), to prompt<i>/prefill/0/<rest> (positions of the prompt, in order) or prompt<i>/decode/<position - length>/<rest>.
/// Tensors without a table keep their names. A dump without tables comes back as it is. Hashes and statistics are taken anew.
/// Throws Error{malformed}, naming tensor and row, for every row of unknown owner: table and tensor of other lengths, a prompt
/// that the manifest does not declare, a negative position, an unknown kind, a (prompt, position) twice or missing; Error{usage}
/// if the dump holds no values.
Dump align_rows(const Dump& dump);

}  // namespace assay
