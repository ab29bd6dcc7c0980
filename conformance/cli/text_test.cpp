// assay run with text, chats and sampling, and assay ppl, as a person or a script meets them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "conformance/cli/cli_test_program.h"
#include "conformance/text/test_model.h"

namespace cli_test {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> records(const std::string& file) {
  std::vector<Json> out;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
  return out;
}

class CliText : public testing::Test {
 protected:
  std::string run(const std::string& more) const { return "run '" + model.path().string() + "' --kv f32 " + more; }
  std::string ppl(const std::string& more) const { return "ppl '" + model.path().string() + "' --kv f32 " + more; }
  const assay::TextModelFolder model;
  const Folder f;
};

TEST_F(CliText, APromptIsItsIds) {
  const Output text = assay(run("--prompt Hi! -n 6 --ids")), ids = assay(run("--tokens 72,105,33 -n 6 --ids"));
  EXPECT_EQ(text.code, 0) << text.text;
  EXPECT_EQ(text.text, ids.text);
  std::ofstream(f / "p") << "Hi!";
  EXPECT_EQ(assay(run("--prompt-file " + (f / "p") + " -n 6 --ids")).text, ids.text);
  EXPECT_EQ(assay(run("--prompt Hi! --prompt Ho -n 6 --ids")).text,
            ids.text + assay(run("--prompt Ho -n 6 --ids")).text);
}

TEST_F(CliText, TextRecordsSayWhatWasChosen) {
  const Output o = assay(run("--prompt Hi! -n 6 --chunk 2 --json " + (f / "r")));
  ASSERT_EQ(o.code, 0) << o.text;
  const std::vector<Json> r = records(f / "r");
  ASSERT_EQ(r.size(), 1u);
  EXPECT_EQ(r[0].at("ids"), Json({72, 105, 33}));
  std::string joined;
  for (const Json& id : r[0].at("chosen_ids")) joined += (joined.empty() ? "" : ",") + id.dump();
  const std::string greedy = assay(run("--prompt Hi! -n 6 --ids")).text;
  EXPECT_EQ(greedy.rfind(joined, 0), 0u) << greedy << joined;
  EXPECT_TRUE(r[0].at("ended_by") == "count" || r[0].at("ended_by") == "eos") << r[0];
  EXPECT_NE(o.text.find("ended by " + r[0].at("ended_by").get<std::string>()), std::string::npos) << o.text;
}

TEST_F(CliText, SamplingRepeatsBySeed) {
  auto ids = [&](const std::string& more) {
    return assay(run("--prompt Hi! -n 12 --ids --temperature 2 " + more)).text;
  };
  EXPECT_EQ(ids("--seed 1"), ids("--seed 1 --threads 1 --chunk 2"));
  EXPECT_NE(ids("--seed 1"), ids("--seed 2"));
  EXPECT_EQ(ids("--top-k 1"), assay(run("--prompt Hi! -n 12 --ids")).text) << "one id left: greedy";
  const std::string twelve = ids("");
  EXPECT_EQ(std::count(twelve.begin(), twelve.end(), ','), 11) << twelve;
}

TEST_F(CliText, ChatsRenderEveryTurnAnew) {
  const Output o = assay(run("--chat --system S --prompt one --prompt two -n 3 --json " + (f / "r")));
  ASSERT_EQ(o.code, 0) << o.text;
  const std::vector<Json> r = records(f / "r");
  ASSERT_EQ(r.size(), 2u);
  auto text_of = [](const Json& ids) {
    std::string s;
    for (const Json& id : ids) s += char(id.get<int>());
    return s;
  };
  EXPECT_EQ(text_of(r[0].at("ids")), "s:S\nu:one\na:");
  const std::string answer = r[0].at("text");
  EXPECT_EQ(text_of(r[1].at("ids")), "s:S\nu:one\na:" + answer + "\nu:two\na:");
  // The same by lines of stdin, and more variables of the template.
  std::ofstream(f / "in") << "one\n\ntwo\n";
  ASSERT_EQ(assay(run("--chat --system S -n 3 --json " + (f / "s") + " < " + (f / "in"))).code, 0);
  EXPECT_EQ(records(f / "s"), r);
  ASSERT_EQ(assay(run("--chat --prompt x -n 1 --chat-args '{\"loud\": 1}' --json " + (f / "t"))).code, 0);
  EXPECT_EQ(text_of(records(f / "t")[0].at("ids")), "u:x\na:!");
}

/// A pipe that stays open: what ends the chat is the signal, whether it meets a turn or the read of the next one.
TEST_F(CliText, AnInterruptedChatIsNoPass) {
  int in[2], out[2];
  ASSERT_EQ(pipe(in), 0);
  ASSERT_EQ(pipe(out), 0);
  const std::string folder = model.path().string();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGINT, SIG_DFL);
    dup2(in[0], 0);
    dup2(out[1], 1);
    for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
    execl(ASSAY_PROGRAM, "assay", "run", folder.c_str(), "--chat", "-n", "4", "--threads", "1", nullptr);
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  EXPECT_EQ(write(in[1], "Hi\n", 3), 3);
  char letter;
  EXPECT_EQ(read(out[0], &letter, 1), 1);  // the answer has begun, so the program handles signals
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    kill(child, SIGINT);
    usleep(20000);
  }
  close(in[1]);
  close(out[0]);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST_F(CliText, DumpTakesTextToo) {
  ASSERT_EQ(
      assay("dump '" + model.path().string() + "' --kv f32 --mode hash --prompt Hi! --decode 2 --out " + (f / "a"))
          .code,
      0);
  ASSERT_EQ(assay("dump '" + model.path().string() + "' --kv f32 --mode hash --tokens 72,105,33 --decode 2 --out " +
                  (f / "b"))
                .code,
            0);
  EXPECT_EQ(assay("compare " + (f / "a") + " " + (f / "b") + " --level byte_exact").code, 0);
}

TEST_F(CliText, PplHasTheSameBytesHoweverItIsRun) {
  std::ofstream(f / "t") << "It was the best of times, it was the worst of times.";
  auto tokens = [&](const std::string& more) {
    const Output o = assay(ppl("--text " + (f / "t") + " --by token --json " + (f / "r") + " " + more));
    EXPECT_EQ(o.code, 0) << o.text;
    std::vector<Json> r = records(f / "r");
    r.back().erase("pass");
    return r;
  };
  const std::vector<Json> wanted = tokens("");
  ASSERT_EQ(wanted.size(), 52u) << "51 judged ids and the summary";
  EXPECT_EQ(wanted[0].at("index"), 1);
  EXPECT_EQ(wanted[0].at("id"), int('t'));
  EXPECT_EQ(wanted.back().at("judged"), 51);
  double sum = 0;
  for (size_t i = 0; i + 1 < wanted.size(); i++) sum += wanted[i].at("nll").get<double>();
  EXPECT_DOUBLE_EQ(wanted.back().at("mean_nll").get<double>(), sum / 51);
  for (const char* more : {"--chunk 1", "--chunk 0 --threads 3", "--isa scalar", "--pass decode"})
    EXPECT_EQ(tokens(more), wanted) << more;
  std::string ids;
  for (const char c : std::string("It was the best of times, it was the worst of times."))
    ids += (ids.empty() ? "" : ",") + std::to_string(int(c));
  std::ofstream(f / "i") << ids << "\n";
  ASSERT_EQ(assay(ppl("--tokens-file " + (f / "i") + " --json " + (f / "r"))).code, 0);
  EXPECT_EQ(records(f / "r").back().at("nll_hash"), wanted.back().at("nll_hash"));
}

TEST_F(CliText, BadUseIsExit2AndSaysWhatToDo) {
  const std::string bare = std::string(ASSAY_SOURCE_DIR) + "/goldens/official/qwen2-bias/model";
  std::ofstream(f / "t") << "text";
  std::ofstream(f / "bad") << "\xff\xfe";
  const std::pair<std::string, std::string> rows[] = {
      {run("-n 2"), "--prompt"},
      {run("--prompt a --tokens 1 -n 2"), "leave the order"},
      {run("--prompt a --temperature -1"), "--temperature"},
      {run("--prompt a --temperature nan"), "--temperature"},
      {run("--prompt a --temperature 1 --top-p 0"), "--top-p"},
      {run("--prompt a --temperature 1 --top-k -1"), "--top-k"},
      {run("--prompt a --temperature 1 --min-p 2"), "--min-p"},
      {run("--prompt a --seed -1"), "found -1"},
      {run("--prompt a -n 0"), "too few ids"},
      {run("--prompt a --ctx 5000"), "1024"},
      {run("--prompt a --batch"), "--batch"},
      {run("--prompt a --ids --stop b"), "--stop"},
      {run("--prompt-file /nowhere"), "/nowhere"},
      {run("--prompt-file " + (f / "bad")), "UTF-8"},
      {run("--system s --prompt a"), "--chat"},
      {run("--chat --ids --prompt a"), "--chat"},
      {run("--chat --prompt a --chat-args '[1]'"), "--chat-args"},
      {run("--chat --prompt a --chat-args '{'"), "--chat-args"},
      {run("--chat --prompt a --chat-args '{\"messages\": []}'"), "messages"},
      {"run '" + bare + "' --prompt a", "tokenizer.json"},
      {"run '" + bare + "' --chat --prompt a", "tokenizer.json"},
      {"dump '" + bare + "' --prompt a --out " + (f / "d"), "tokenizer.json"},
      {ppl(""), "--text FILE or --tokens-file FILE"},
      {ppl("--text /nowhere"), "/nowhere"},
      {ppl("--text " + (f / "t") + " --pass both"), "prefill or decode"},
      {ppl("--text " + (f / "t") + " --by layer"), "token"},
      {ppl("--text " + (f / "t") + " --window 1"), "--window"},
      {ppl("--text " + (f / "t") + " --window 2000"), "1024"},
      {ppl("--text " + (f / "t") + " --chunk -1"), "--chunk"},
      {ppl("--text " + (f / "t") + " --activations s8"), "no quantised weights"},
      {"ppl --text " + (f / "t"), "model"},
      {"ppl '" + bare + "' --text " + (f / "t"), "tokenizer.json"},
  };
  for (const auto& [arguments, says] : rows) {
    const Output o = assay(arguments);
    EXPECT_EQ(o.code, 2) << "assay " << arguments << "\n" << o.text;
    EXPECT_NE(o.text.find(says), std::string::npos) << "assay " << arguments << "\n" << o.text;
  }
  std::filesystem::remove(model.path() / "chat_template.jinja");
  EXPECT_NE(assay(run("--chat --prompt a")).text.find("has no chat template"), std::string::npos);
  model.write("chat_template.jinja", "{{ raise_exception('no users here') }}");
  const Output refused = assay(run("--chat --prompt a"));
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.text.find("no users here"), std::string::npos) << refused.text;
}

TEST(CliPpl, HelpShowsAnExample) {
  const Output o = assay("ppl --help");
  EXPECT_EQ(o.code, 0);
  EXPECT_NE(o.text.find("Example:\n  assay ppl"), std::string::npos) << o.text;
}

}  // namespace
}  // namespace cli_test
