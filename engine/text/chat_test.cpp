// Chat templates of published models against the text that transformers rendered, line by line, and where templates are
// found.
#include "engine/text/chat.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "dumps/error.h"
#include "engine/formats/hf_tokenizer.h"

namespace assay {
namespace {

using Ordered = nlohmann::ordered_json;
namespace fs = std::filesystem;

const fs::path kGoldens = fs::path(ASSAY_SOURCE_DIR) / "goldens/tokenizers";

TEST(Chat, RendersEveryGoldenConversation) {
  for (const auto& [name, lines] : {std::pair("tokenizer-qwen3", 5), std::pair("tokenizer-smollm2", 4)}) {
    const fs::path dir = kGoldens / name;
    const ChatTemplate chat(read_text_file(dir / "chat_template.jinja"), name);
    std::ifstream in(dir / "chat.jsonl");
    int seen = 0;
    for (std::string line; std::getline(in, line); seen++) {
      const Ordered row = Ordered::parse(line);
      Ordered more = row.value("kwargs", Ordered::object());
      if (row.contains("tools")) more["tools"] = row.at("tools");
      EXPECT_EQ(chat.render(row.at("messages"), row.at("add_generation_prompt"), more, {}),
                row.at("rendered").get<std::string>())
          << name << ", " << row.at("name");
    }
    EXPECT_EQ(seen, lines) << name;
  }
}

class ChatFolder : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir); }
  void TearDown() override { fs::remove_all(dir); }
  void write(const std::string& file, const std::string& text) { std::ofstream(dir / file, std::ios::binary) << text; }
  std::string render() {
    const auto chat = ChatTemplate::load(dir);
    return chat ? chat->render({{"user", "hi"}}, true, {}) : "none";
  }
  const fs::path dir = fs::temp_directory_path() / ("assay-chat-" + std::to_string(getpid()));
};

TEST_F(ChatFolder, TemplatesAreFoundWhereModelsKeepThem) {
  EXPECT_EQ(render(), "none");
  write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(render(), "none");
  write("tokenizer_config.json",
        R"({"bos_token": "<s>", "add_bos_token": true, "chat_template": "{{ bos_token }}{{ messages[0].content }}"})");
  EXPECT_EQ(render(), "<s>hi");
  write("tokenizer_config.json", R"({"eos_token": {"content": "</s>", "lstrip": false},
    "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }}{{ messages[0]['role'] }}"}]})");
  EXPECT_EQ(render(), "</s>user");
  write("chat_template.jinja", "file {{ tools is none }}{{ eos_token }}\n");
  EXPECT_EQ(render(), "file True</s>");
  for (const char* bad : {"[]", R"({"chat_template": 3})", R"({"chat_template": [{"name": "x", "template": ""}]})",
                          R"({"eos_token": {}})"}) {
    write("tokenizer_config.json", bad);
    EXPECT_THROW(render(), Error) << bad;
  }
}

TEST_F(ChatFolder, ErrorsNameTheFile) {
  write("chat_template.jinja", "a\n{% include 'x' %}");
  try {
    render();
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("chat_template.jinja: line 2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace assay
