// The commands of dumps/ for those who take the folder alone (the same as `assay inspect` and `assay import`).
//   assay-dumps inspect PATH [--verify] [--json]
//   assay-dumps import OUT INPUT...
#include <cstring>
#include <exception>
#include <iostream>

#include "dumps/error.h"
#include "dumps/import.h"
#include "dumps/inspect.h"

int main(int argc, char** argv) {
  const std::string usage = "assay-dumps inspect PATH [--verify] [--json] [--tensors]\nassay-dumps import OUT INPUT...\n";
  try {
    const std::string command = argc > 1 ? argv[1] : "";
    if (command == "inspect" && argc >= 3) {
      assay::InspectOptions options;
      for (int i = 3; i < argc; ++i) {
        const std::string a = argv[i];
        if (a == "--verify") {
          options.verify = true;
        } else if (a == "--json") {
          options.json = true;
        } else if (a == "--tensors") {
          options.tensors = true;
        } else {
          throw assay::Error(assay::ErrorKind::usage, a, "unknown option", "--verify, --json or --tensors");
        }
      }
      return assay::inspect(argv[2], std::cout, options) ? assay::kPass : assay::kMismatch;
    }
    if (command == "import" && argc >= 4) {
      std::cout << assay::import_safetensors({argv + 3, argv + argc}, argv[2]) << " tensors\n";
      return assay::kPass;
    }
    std::cerr << usage;
    return assay::kUsage;
  } catch (const assay::Error& e) {
    std::cerr << "assay-dumps: " << e.what() << "\n";
    return e.exit_code();
  } catch (const std::exception& e) {
    std::cerr << "assay-dumps: " << e.what() << "\n";
    return assay::kUnfinished;
  }
}
