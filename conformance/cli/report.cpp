#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "dumps/report.h"

namespace assay::cli {
namespace {

struct ReportCommand {
  std::vector<std::string> files;
  std::string html;
};

int run(const ReportCommand& o) {
  std::vector<nlohmann::ordered_json> records;
  for (const std::string& file : o.files) {
    std::vector<nlohmann::ordered_json> more = read_records(file);
    records.insert(records.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  const std::string page = render_html(records);
  write_text(o.html, page);
  if (o.html != "-") {
    std::cout << fmt::format("wrote    {}: {} records on {} KB\nnext     open it in a browser; it needs no network\n",
                             o.html, records.size(), (page.size() + 999) / 1000);
  }
  return kPass;
}

}  // namespace

void add_report(CLI::App& app, int& code) {
  auto o = std::make_shared<ReportCommand>();
  CLI::App* c = app.add_subcommand("report", "one HTML page from the JSONL records of any commands");
  c->add_option("records", o->files, "files that --json wrote: compare, bisect, faults, check")->required();
  c->add_option("--html", o->html, "the page (-: stdout)")->required();
  c->footer("Example:\n  assay report /tmp/compare.jsonl /tmp/bisect.jsonl --html /tmp/report.html");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
