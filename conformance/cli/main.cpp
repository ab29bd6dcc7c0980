// assay: the command line (README "Commands"). Exit codes: 0 pass, 1 mismatch, 2 usage or bad input, 3 could not finish,
// 77 not run.
#include <csignal>
#include <iostream>
#include <new>

#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "engine/version.h"

int main(int argc, char** argv) {
  using namespace assay;
  CLI::App app{"Assay: a conformance and regression suite for LLM inference engines.\n"
               "One set of bits on every backend, no verdict without a place, a suite proven able to fail.",
               "assay"};
  app.set_version_flag("--version", std::string("assay ") + kVersion + ", sources " + kSourceHash);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::help);
  int code = kPass;
  cli::add_run(app, code);
  cli::add_ppl(app, code);
  cli::add_dump(app, code);
  cli::add_compare(app, code);
  cli::add_report(app, code);
  cli::add_bisect(app, code);
  cli::add_replay(app, code);
  cli::add_map(app, code);
  cli::add_inspect(app, code);
  cli::add_convert(app, code);
  cli::add_import(app, code);
  cli::add_synth(app, code);
  cli::add_check(app, code);
  cli::add_list(app, code);
  cli::add_faults(app, code);
  cli::add_gate(app, code);
  cli::add_bench(app, code);
  cli::add_plan(app, code);
  cli::add_limits(app, code);
  cli::add_selftest(app, code);
  cli::add_tokenize(app, code);
  std::signal(SIGXFSZ, SIG_IGN);   // a file that may grow no further is an error with a message, not the end
  try {
    for (int i = 1; i < argc; i++)
      if (!*argv[i]) throw Error(ErrorKind::usage, "argument " + std::to_string(i), "is empty", "a value", "\"\"", "An unset variable in a script?");
    app.parse(argc, argv);
    std::cout.flush();
    if (!std::cout) throw Error(ErrorKind::io, "stdout", "can't be written");
    return code;
  } catch (const CLI::Success& e) {   // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    const bool no_command = app.get_subcommands().empty();
    const std::string what = !no_command ? e.what() : argc > 1 ? "there is no command \"" + std::string(argv[1]) + "\"" : "a command is missing";
    std::cerr << "assay: " << what << "\nNext: assay " << (no_command ? "" : app.get_subcommands()[0]->get_name() + " ")
              << "--help\n";
    return kUsage;
  } catch (const Error& e) {
    std::cerr << "assay: " << e.what() << "\n";
    return e.exit_code();
  } catch (const std::bad_alloc&) {
    std::cerr << "assay: out of memory\n";
    return kUnfinished;
  } catch (const std::exception& e) {
    std::cerr << "assay: internal error: " << e.what() << "\n";
    return kUnfinished;
  }
}
