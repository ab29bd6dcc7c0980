// Planted faults: each breaks something the way a real engine, file or comparator went wrong, so that the suite is
// proven able to fail. Nothing here runs unless a fault is asked for by name, and every dump made with one says so in
// its manifest. Which check must catch a fault, and where, stands in expected.json, not here.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/error.h"
#include "engine/session.h"

namespace assay {

struct CheckContext;
struct DumpSpec;

enum class How : uint8_t { program, state, value, option, kernel, artifact, comparator, mutation };
std::string_view name_of(How h);

/// What a check says of something, with a fault in it or without.
struct Finding {
  bool failed = false;
  std::string place;         // where it failed first; "" if it passed
  bool changed = false;      // a byte that the check looked at is another one than without the fault
  std::string not_run;       // why nothing could be judged here; "" if it was
  std::string note;          // figures for people
  int64_t kernel_case = -1;  // of a kernel check: the case that failed first
};

/// One variant of a row of the table of faults that happened. A fault has the plants that make sense for it.
struct Fault {
  std::string id;    // "B3/rope-pairs": row, variant
  std::string what;  // one line
  How how;
  std::string note = {};                            // what its rows of the kill matrix say of the suite, in words
  std::function<void(Engine&)> engine = nullptr;    // into an engine; throws NoPlace
  std::function<void(Kernels&)> kernels = nullptr;  // into a copy of the scalar kernels
  std::function<void(DumpSpec&)> spec = nullptr;    // into what is asked of a run
  /// Judges material of the fault's own (files, dumps): what check `id` says of it, planted or as it should be.
  std::function<Finding(const CheckContext&, const std::string& id, bool planted)> own = nullptr;
  bool slow = false;  // judged on the 48-layer case: minutes
  bool plain_build = false;  // can be judged in builds without sanitizers alone

  std::string row() const { return id.substr(0, id.find('/')); }
  std::string name() const { return id.substr(id.find('/') + 1); }
};
const std::vector<Fault>& faults();
/// By id or by name. Error{usage} with the known ones.
const Fault& fault_named(const std::string& name);

/// Thrown by a plant where a model has no place for it: such a fault is "not applicable", never "caught".
class NoPlace : public Error {
 public:
  explicit NoPlace(const std::string& fault)
      : Error(ErrorKind::usage, fault, "this model has no place for the fault: it was not planted") {}
};

/// Plants into an engine, whichever way the fault goes (`engine`, or `kernels` under every node that they change).
/// Throws Error{usage} for an unknown name and for faults that are not planted into engines, NoPlace where there is
/// none.
void plant(Engine& engine, const std::string& name);
/// The scalar kernels with the fault in them. Precondition: fault.kernels.
Kernels planted_kernels(const Fault& fault);

// Each file adds its own.
void add_program_faults(std::vector<Fault>& out);    // wiring, order of sums, options: program_faults.cpp
void add_state_faults(std::vector<Fault>& out);      // positions, caches, passes, captures: state_faults.cpp
void add_hybrid_faults(std::vector<Fault>& out);     // gated DeltaNet, its state, the MTP head: hybrid_faults.cpp
void add_kernel_faults(std::vector<Fault>& out);     // quantised products and quantiser: kernel_faults.cpp
void add_tail_faults(std::vector<Fault>& out);       // branches that no model takes: tail_faults.cpp
void add_artifact_faults(std::vector<Fault>& out);   // files and manifests: artifact_faults.cpp
void add_tokenizer_faults(std::vector<Fault>& out);  // tokenizer_faults.cpp
void add_moe_faults(std::vector<Fault>& out);         // mixtures of experts: moe_faults.cpp
void add_subject_faults(std::vector<Fault>& out);     // other engines' dumps: subject_faults.cpp
void add_device_weight_faults(std::vector<Fault>& out);  // modules, memory and weights: device_weight_faults.cpp
void add_device_graph_faults(std::vector<Fault>& out);   // steps, graphs and state: device_graph_faults.cpp
void add_device_kernel_faults(std::vector<Fault>& out);  // device_kernel_faults.cpp
void add_comparator_faults(
    std::vector<Fault>& out);  // comparators that passed what they should fail: comparator_faults.cpp

}  // namespace assay
