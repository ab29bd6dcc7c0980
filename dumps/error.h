// The one exception of the house. A message says what, where, wanted, found and what to do; the kind fixes the exit code.
#pragma once
#include <stdexcept>
#include <string>

namespace assay {

enum class ErrorKind {
  usage,      // a wrong option or an impossible combination                      exit 2
  malformed,  // a missing, truncated, contradictory or absurd input              exit 2
  io,         // the system refused: full disk, permission, vanished file         exit 3
  memory,     // does not fit                                                     exit 3
  numeric,    // a value that the chosen types can not hold                       exit 3
  internal,   // a promise of this program was broken                             exit 3
};

/// Exit codes of every command (one table, README "Exit codes"). Where several apply: 2, 3, 1, 77, 0.
enum ExitCode : int { kPass = 0, kMismatch = 1, kUsage = 2, kUnfinished = 3, kNotRun = 77 };

class Error : public std::runtime_error {
 public:
  /// `where` is a path, an option or a tensor name with its offset; the rest is the sentence a person reads:
  /// "WHERE: WHAT[; wanted W][, found F][. HINT]".
  Error(ErrorKind kind, const std::string& where, const std::string& what, const std::string& wanted = {},
        const std::string& found = {}, const std::string& hint = {})
      : std::runtime_error(where + ": " + what + (wanted.empty() ? "" : "; wanted " + wanted) +
                           (found.empty() ? "" : ", found " + found) + (hint.empty() ? "" : ". " + hint)),
        kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const {
    return kind_ == ErrorKind::usage || kind_ == ErrorKind::malformed ? kUsage : kUnfinished;
  }

 private:
  ErrorKind kind_;
};

}  // namespace assay
