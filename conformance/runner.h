// One way to make a dump of our engine: `assay dump`, the checks and the planted faults all go through here.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dumps/writer.h"
#include "engine/capture.h"
#include "engine/formats/loader.h"
#include "engine/session.h"

namespace assay {

struct DumpSpec : DumpFolder {
  std::vector<Request> requests;
  EngineOptions engine;             // context 0: as long as the longest request; slots 0: as many as needed
  GenerateOptions generate;
  std::string plant;                // a planted fault's name (faults/faults.h), or ""
};

struct DumpRun {
  std::vector<Generated> generated;
  std::vector<std::string> state_hashes;   // of each request's slot after its last pass; empty where a later one reused the slot
  Trace trace;
};

/// Fills in context and slots where the spec leaves them open, and builds the engine with the planted fault, if any.
std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model, const DumpSpec& spec);
/// Runs the requests and writes the dump. Without an `out` nothing is captured.
DumpRun run_dump(std::shared_ptr<const Model> model, const DumpSpec& spec);
/// The same with an engine that is there already, as it was rewritten.
DumpRun run_dump(Engine& engine, const DumpSpec& spec);

/// The requests of an official case's manifest: prompts with `decode.steps` passes; forced: fed with the golden ids.
std::vector<Request> official_requests(const std::filesystem::path& case_dir, bool forced = false);

}  // namespace assay
