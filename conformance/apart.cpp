#include "conformance/apart.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <iostream>

#include "dumps/error.h"

namespace assay {
namespace {

[[noreturn]] void judge_and_leave(const Check& check, const CheckContext& context, int to) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);   // who stops the program stops the module
  const std::string record = to_json(run_check(check, context)).dump();
  for (size_t sent = 0; sent < record.size();) {
    const ssize_t n = write(to, record.data() + sent, record.size() - sent);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    sent += size_t(n);
  }
  std::cout.flush();
  _exit(0);   // what the module left to be done at exit is not the check's business
}

/// What the child wrote until its end or the limit; `late`: the limit came first.
std::string all_of(int from, double limit, bool& late) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(limit);
  std::string out;
  char part[4096];
  for (;;) {
    const double left = std::chrono::duration<double>(end - Clock::now()).count();
    late = left <= 0;
    if (late) return out;
    pollfd p{from, POLLIN, 0};
    const int ready = poll(&p, 1, int(std::min(std::ceil(left * 1000), 1e9)));
    if (ready <= 0) continue;
    const ssize_t n = read(from, part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return out;
    out.append(part, size_t(n));
  }
}

}  // namespace

nlohmann::ordered_json run_check_apart(const Check& check, const CheckContext& context, double limit) {
  int ends[2];
  std::cout.flush();   // else the child would have it too
  std::cerr.flush();
  if (pipe(ends) != 0) throw Error(ErrorKind::io, check.id, std::string("no process of its own: ") + strerror(errno));
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child < 0) {
    const int reason = errno;
    close(ends[0]), close(ends[1]);
    throw Error(ErrorKind::io, check.id, std::string("no process of its own: ") + strerror(reason));
  }
  if (child == 0) {
    close(ends[0]);
    judge_and_leave(check, context, ends[1]);
  }
  close(ends[1]);
  bool late = false;
  const std::string record = all_of(ends[0], limit, late);
  close(ends[0]);
  if (late) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  const nlohmann::ordered_json judged = nlohmann::ordered_json::parse(record, nullptr, false);
  if (!late && !judged.is_discarded()) return judged;

  CheckResult r{&check, {}, Verdict::error, kUnfinished, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  const std::string how = late                  ? fmt::format("had no verdict after {:g} s (--time-limit)", limit)
                          : WIFSIGNALED(status) ? fmt::format("was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                                                : fmt::format("ended itself with exit code {}", WEXITSTATUS(status));
  r.outcome.fail(fmt::format("the process that ran {} {} before it had judged it", context.module.string(), how));
  return to_json(r);
}

}  // namespace assay
