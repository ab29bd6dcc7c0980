// Tables of faults/expected.json besides "rows" (dumps compared): each function judges the rows of one fault. A fault
// is caught only where its row says, and only if the same check passes without it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "conformance/check.h"

namespace assay {

/// {fault, row, op, first}: the kernel check of `op` fails on the planted kernels, its first failure beginning with
/// `first`.
void judge_kernel_rows(const nlohmann::json& rows, const std::string& fault, CheckOutcome& out);

/// {fault, row, case, quantisation, first}: a NaN in a norm's weight reaches every output of the nodes that read it;
/// with the fault it stops at node `first`.
void judge_nan_rows(const CheckContext& c, const nlohmann::json& rows, const std::string& fault, CheckOutcome& out);

/// {fault, row, case, quantisation, caught, clean, greedy}: KL over texts by pass kind: beyond the gate of 16-bit
/// activations in passes `caught`, below a tenth of that in passes `clean` (a list); greedy: ids that agree for all
/// that ("same" or "").
void judge_text_rows(const CheckContext& c, const nlohmann::json& rows, const std::string& fault, CheckOutcome& out);

/// {fault, row, case, first}: a dump's echoed options against the model's own config.json.
void judge_echo_rows(const CheckContext& c, const nlohmann::json& rows, const std::string& fault, CheckOutcome& out);

}  // namespace assay
