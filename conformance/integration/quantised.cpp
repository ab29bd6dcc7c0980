#include "conformance/integration/quantised.h"

#include <algorithm>
#include <map>

#include "dumps/error.h"
#include "engine/formats/convert.h"

namespace assay {

std::vector<WeightType> quantised_types(const OfficialCase& oc) {
  std::vector<WeightType> types = {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0,
                                   WeightType::q5_1};
  if (std::string(oc.name).find("k256") != std::string::npos)
    for (WeightType t : {WeightType::q4_k, WeightType::q5_k, WeightType::q6_k}) types.push_back(t);
  return types;
}

std::shared_ptr<const Model> quantised_case(const CheckContext& c, const OfficialCase& oc, WeightType type) {
  static std::map<std::pair<std::string, WeightType>, std::shared_ptr<const Model>> loaded;
  std::shared_ptr<const Model>& m = loaded[{oc.name, type}];
  if (m) return m;
  const std::filesystem::path file = c.work / (std::string(oc.name) + "." + id_of(type) + ".gguf");
  ConvertOptions options;
  options.type = type;
  options.replace = true;
  options.threads = c.threads;
  const ConvertReport report = convert_model(case_dir(c, oc) / "model", file, options);
  for (const ConvertedTensor& t : report.tensors)
    // What rows of no whole blocks become is the converter's (a head_dim of 40); all else must be what was asked for.
    if (t.to != type && !t.router && !(t.fallback && t.shape.back() % block_elements(type) != 0))
      throw Error(ErrorKind::internal, file.string(), t.name + " did not become " + std::string(name_of(type)));
  m = std::make_shared<Model>(load_model(file));  // mapped: stays readable when the check's folder goes
  return m;
}

const OfficialCase& official_case(const std::string& name) {
  for (const OfficialCase& known : official_cases())
    if (known.name == name) return known;
  throw Error(ErrorKind::malformed, "expected.json", "unknown case", "", name);
}

std::string id_of(WeightType type) {
  std::string s(name_of(type));
  std::transform(s.begin(), s.end(), s.begin(), [](unsigned char ch) { return char(std::tolower(ch)); });
  return s;
}

}  // namespace assay
