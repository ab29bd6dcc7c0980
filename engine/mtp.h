// The head of multi-token prediction (families/mtp.cpp): its passes beside a model's, and decoding that drafts with it.
#pragma once
#include "engine/session.h"

namespace assay {

/// One pass of the head in a slot: row i joins hidden[i], [rows, hidden], with token ids[i], which comes behind it, and continues
/// the head's cache. Logits of the last row. Its greedy id: Engine::greedy(0).
const float* mtp_pass(Engine& engine, Pass pass, const Segment& segment, std::span<const float> hidden, std::span<const int32_t> ids,
                      Observer* observer = nullptr, Trace* trace = nullptr);

/// Drafts on behind a pass of the head whose last row chose `first`: at most `most` ids in all, each from the hidden state of the
/// head's own row before. Fewer where the context ends or a row holds a NaN. The rows stay in the head's cache: truncate_mtp.
/// Passes mtp_draft/1, /2 ...
std::vector<int32_t> mtp_draft(Engine& engine, int slot, int32_t prompt, int32_t first, int64_t most, Observer* observer = nullptr,
                               Trace* trace = nullptr);

struct Speculation {
  std::vector<int32_t> ids;          // as generate()'s greedy ids
  int64_t rounds = 0;                // verify passes
  std::vector<int64_t> drafted, accepted;   // by place in the draft: how many were asked, how many were right with all before them
  std::vector<float> logits;         // [ids, vocab] where asked for: the row that each id was chosen from
  /// Ids per verify pass.
  double per_round() const { return rounds ? double(ids.size() - 1) / double(rounds) : 0; }
};
struct SpeculationOptions {
  int64_t draft = 2;                 // ids drafted per round, at least 1
  int64_t chunk = 0;                 // prefill rows per pass; 0: the whole prompt
  int slot = 0;
  bool keep_logits = false;
};
/// Greedy generation of request.decode + 1 ids: each round drafts with the head, runs the last id and the drafts in one verify
/// pass, keeps what is greedy, and takes the rest back. Rows do not see each other's presence, so that ids and logits are those of
/// generate(), byte for byte. Error{usage}: a model without the head, a context that does not hold the drafts too, forced ids;
/// Error{numeric}: a NaN in the logits.
/// `prefilled` is called between the prompt and the first round.
Speculation speculate(Engine& engine, const Request& request, const SpeculationOptions& options, Observer* observer = nullptr,
                      Trace* trace = nullptr, const std::function<void()>& prefilled = {});

}  // namespace assay
