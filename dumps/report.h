// The report: one HTML file without external resources, rendered from the records of any command and nothing else.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace assay {

/// One page from records of schemas/record.schema.json and of checks: comparisons (each `compare` header begins one),
/// `node_error`, `bisect`, `fault`, `check_result`. A part without records is absent; the summary says what was not
/// compared. Nothing is computed but maxima, counts and logarithms over the records. Same records, same bytes. Never
/// throws on records of other kinds or with keys missing, and takes no missing key for a pass: what can't be shown is
/// named at the end of the page. To write the page: cli::write_text(file, render_html(records)).
std::string render_html(const std::vector<nlohmann::ordered_json>& records);

/// The lines of a JSONL file, or the records of the document that `assay faults --json` writes. Throws Error{malformed} with the line, Error{io}.
std::vector<nlohmann::ordered_json> read_records(const std::filesystem::path& file);

}  // namespace assay
