// Stress of the data path's engine: servers that answer, err, stall, lie and hang up; requests that are late and cancelled.
//
// Every request has memory of its own that is given back the moment it has ended, so that AddressSanitizer sees whoever touches
// it afterwards, and ThreadSanitizer whoever does so meanwhile. A record's bytes all follow from its number: a reply that
// reached the wrong request shows.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "clock.hpp"
#include "engine.hpp"

namespace {

using namespace stratakv::l3;
using Random = std::minstd_rand;

constexpr std::size_t kHeaderBytes = 300;
constexpr std::size_t kUnderWayMax = 64;
constexpr std::size_t kConnections = 3;
constexpr HeaderShape kShape{8, 136, 232, 4096};
constexpr std::uint64_t kMs = 1'000'000;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "FAILED: %s\n", why.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

std::byte byte_of(std::uint64_t number, std::size_t at) { return static_cast<std::byte>(number * 131 + at * 7 + (at >> 8) * 31); }

std::string payload_of(std::uint64_t number, std::size_t bytes) {
  std::string made(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<char>(byte_of(number, i));
  return made;
}

std::string header() {
  std::string made(kHeaderBytes, 'h');
  const auto size = static_cast<std::uint32_t>(kHeaderBytes);
  std::memcpy(made.data() + kShape.size_at, &size, sizeof(size));
  return made;
}

std::string bulk(const std::string& value) { return "$" + std::to_string(value.size()) + "\r\n" + value + "\r\n"; }

std::string command(const std::vector<std::string>& words) {
  std::string made = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) made += bulk(word);
  return made;
}

// ---- the server's end of one connection, in a thread of its own ----

class Server {
 public:
  Server(int socket, std::uint64_t seed) : socket_(socket), random_(static_cast<std::uint32_t>(seed)), thread_([this] { run(); }) {}
  ~Server() { thread_.join(); }
  bool is_over() const { return over_.load(); }

 private:
  void run() {
    std::vector<std::string> words;
    while (read_command(words) && answer(words)) {
    }
    ::close(socket_);
    over_.store(true);
  }

  bool fill() {
    char piece[8192];
    const ssize_t bytes = ::recv(socket_, piece, 1 + random_() % sizeof(piece), 0);
    if (bytes > 0) waiting_.append(piece, static_cast<std::size_t>(bytes));
    return bytes > 0;
  }

  bool read_line(std::string& line) {
    std::size_t at;
    while ((at = waiting_.find("\r\n")) == std::string::npos) {
      if (!fill()) return false;
    }
    line = waiting_.substr(0, at);
    waiting_.erase(0, at + 2);
    return true;
  }

  bool read_command(std::vector<std::string>& words) {
    std::string line;
    if (!read_line(line)) return false;
    if (line[0] != '*') fail("a request does not begin as one: " + line.substr(0, 40));
    words.resize(std::stoul(line.substr(1)));
    for (std::string& word : words) {
      if (!read_line(line)) return false;
      if (line[0] != '$') fail("a word does not begin as one: " + line.substr(0, 40));
      const std::size_t bytes = std::stoul(line.substr(1));
      if (bytes > 4096 && random_() % 64 == 0) return say("-ERR Protocol error: invalid bulk length\r\n") && false;
      while (waiting_.size() < bytes + 2) {
        if (!fill()) return false;
      }
      word = waiting_.substr(0, bytes);
      if (waiting_.compare(bytes, 2, "\r\n") != 0) fail("a word is longer than it said");
      waiting_.erase(0, bytes + 2);
    }
    return true;
  }

  bool answer(const std::vector<std::string>& words) {
    if (random_() % 64 == 0) return misbehave(words);
    if (random_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 3000));
    if (words[0] == "GET") return say(random_() % 16 == 0 ? "$-1\r\n" : random_() % 16 == 0 ? "-ERR no\r\n" : record_of(words[1]));
    if (words[0] == "SET") {
      check_stored(words);
      return say(random_() % 16 == 0 ? "-OOM no\r\n" : "+OK\r\n");
    }
    return say(bulk(words[1]));
  }

  // Keys are number:size.
  std::string record_of(const std::string& key) {
    const std::uint64_t number = std::stoull(key);
    std::size_t bytes = std::stoul(key.substr(key.find(':') + 1));
    if (random_() % 8 == 0) bytes = random_() % (2 * bytes);
    return bulk(header() + payload_of(number, bytes));
  }

  void check_stored(const std::vector<std::string>& words) {
    const std::uint64_t number = std::stoull(words[1]);
    const std::string payload = words[2].substr(kHeaderBytes);
    if (payload != payload_of(number, payload.size())) fail("what was sent is not what was to be stored");
    std::uint64_t hash;
    std::memcpy(&hash, words[2].data() + kShape.checksum_at, sizeof(hash));
    if (hash != xxh3_64(reinterpret_cast<const std::byte*>(payload.data()), payload.size())) fail("a record's checksum is wrong");
  }

  bool misbehave(const std::vector<std::string>& words) {
    switch (random_() % 5) {
      case 0: return false;
      case 1: say("$12x\r\n"); return false;
      case 2: say("$99999999999\r\n"); return read_to_the_end();
      case 3: return read_to_the_end();  // stalls
      default: {
        const std::string reply = words[0] == "GET" ? record_of(words[1]) : bulk("x");
        say(reply.substr(0, random_() % reply.size()));
        return false;
      }
    }
  }

  bool read_to_the_end() {
    while (fill()) waiting_.clear();
    return false;
  }

  bool say(const std::string& reply) {
    std::size_t at = 0;
    while (at < reply.size()) {
      const std::size_t piece = std::min<std::size_t>(reply.size() - at, random_() % 2 == 0 ? reply.size() : 1 + random_() % 5000);
      const ssize_t bytes = ::send(socket_, reply.data() + at, piece, MSG_NOSIGNAL);
      if (bytes <= 0) return false;
      at += static_cast<std::size_t>(bytes);
    }
    return true;
  }

  const int socket_;
  Random random_;
  std::string waiting_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// ---- whoever asks ----

struct Asked {
  std::unique_ptr<std::byte[]> memory;  // its place, or its payload
  std::uint64_t number = 0;
  std::size_t bytes = 0;
  Verb verb = Verb::Ask;
};

class Client {
 public:
  Client(Engine& engine, std::uint64_t seed) : engine_(engine), random_(static_cast<std::uint32_t>(seed)) { open_shard(); }

  void step() {
    while (connections_ < kConnections) connect();
    servers_.remove_if([](const std::unique_ptr<Server>& server) { return server->is_over(); });
    while (asked_.size() < kUnderWayMax) submit();
    engine_.flush();
    if (random_() % 16 == 0) engine_.cancel(last_number_ - static_cast<std::int64_t>(random_() % kUnderWayMax));
    if (random_() % 4096 == 0) {
      engine_.close_shard(shard_);
      open_shard();
    }
    pollfd ended{engine_.ended_descriptor(), POLLIN, 0};
    ::poll(&ended, 1, 20);
    hear();
  }

  void hear() {
    for (Ended& ended : engine_.drain()) {
      if (ended.number < 0) {
        if (live_.erase(~ended.number) != 0) --connections_;
        continue;
      }
      const auto found = asked_.find(ended.number);
      if (found == asked_.end()) fail("a request ended twice, or was never made");
      ++counts[static_cast<std::size_t>(ended.status)];
      if (ended.status == Status::Done) check(found->second, *ended.request);
      asked_.erase(found);  // its memory is gone now
    }
  }

  bool has_all() const { return asked_.empty(); }

  std::uint64_t counts[9] = {};

 private:
  void open_shard() {
    engine_.open_shard(++shard_);
    live_.clear();
    connections_ = 0;
  }

  void connect() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("no socket pair");
    servers_.push_back(std::make_unique<Server>(ends[1], random_()));
    engine_.add_connection(++last_connection_, shard_, Descriptor(ends[0]));
    live_.emplace(last_connection_, true);
    ++connections_;
  }

  void submit() {
    Asked asked;
    asked.number = random_();
    asked.bytes = random_() % 4 == 0 ? 1 + random_() % 200'000 : 1 + random_() % 2000;
    asked.verb = static_cast<Verb>(random_() % kVerbs);
    auto request = std::make_unique<Request>();
    request->number = ++last_number_;
    request->verb = asked.verb;
    request->shard = shard_;
    const std::uint64_t patience[] = {kMs / 5, 2 * kMs, 50 * kMs, 1000 * kMs};
    request->deadline_ns = boottime_ns() + patience[random_() % 4];
    asked.memory.reset(new std::byte[asked.bytes]);
    prepare(asked, *request);
    asked_.emplace(last_number_, std::move(asked));
    engine_.submit(std::move(request));
  }

  void prepare(Asked& asked, Request& request) {
    const std::string key = std::to_string(asked.number) + ":" + std::to_string(asked.bytes);
    if (asked.verb == Verb::Get) {
      request.before = command({"GET", key});
      request.place = asked.memory.get();
      request.place_bytes = asked.bytes;
    } else if (asked.verb == Verb::Ask) {
      request.replies = 1 + asked.number % 3;
      for (std::size_t i = 0; i < request.replies; ++i) request.before += command({"ECHO", key});
    } else {
      const std::string whole = payload_of(asked.number, asked.bytes);
      std::memcpy(asked.memory.get(), whole.data(), whole.size());
      request.before = "*3\r\n" + bulk("SET") + bulk(key) + "$" + std::to_string(kHeaderBytes + asked.bytes) + "\r\n";
      request.header = header();
      request.payload = asked.memory.get();
      request.payload_bytes = asked.bytes;
      request.after = "\r\n";
      request.unsealed = true;
      request.sealing = RunningXxh3(request.payload, request.payload_bytes);
    }
  }

  void check(const Asked& asked, const Request& request) {
    if (asked.verb == Verb::Ask) {
      const std::string key = std::to_string(asked.number) + ":" + std::to_string(asked.bytes);
      if (request.answers.size() != request.replies) fail("a question has not all its answers");
      for (const Answer& answer : request.answers) {
        if (answer.kind != Answer::Kind::Text || answer.text != key) fail("an answer is that to another question");
      }
    } else if (asked.verb == Verb::Get) {
      const std::byte* const at = request.in_place ? asked.memory.get() : request.stored.get();
      if (at == nullptr) return;
      const std::string wanted = payload_of(asked.number, request.stored_bytes);
      if (std::memcmp(at, wanted.data(), wanted.size()) != 0) fail("a record is that of another request");
      if (request.checksum != xxh3_64(at, request.stored_bytes)) fail("a checksum is wrong");
    }
  }

  Engine& engine_;
  Random random_;
  std::uint32_t shard_ = 0;
  std::int64_t last_connection_ = 0, last_number_ = 0;
  std::size_t connections_ = 0;
  std::unordered_map<std::int64_t, bool> live_;
  std::unordered_map<std::int64_t, Asked> asked_;
  std::list<std::unique_ptr<Server>> servers_;
};

// ---- the receiver by itself: replies, whole and damaged, in pieces of every size ----

constexpr ReplyLimits kLimits{kShape, 1024, 16 * 1024};

std::string a_reply(Random& random, const Request& request) {
  const std::uint64_t number = random();
  switch (random() % 6) {
    case 0: return "$-1\r\n";
    case 1: return "-ERR " + std::string(random() % 1500, 'e') + "\r\n";
    case 2: return ":" + std::to_string(random()) + "\r\n";
    case 3: return "+OK\r\n";
    case 4: return bulk(std::string(random() % 20'000, 'b'));
    default: return bulk(header() + payload_of(number, random() % 2 == 0 ? request.place_bytes : random() % (2 * request.place_bytes)));
  }
}

void damage(Random& random, std::string& said) {
  for (std::uint32_t times = random() % 4; times > 0 && !said.empty(); --times) {
    const std::size_t at = random() % said.size();
    switch (random() % 3) {
      case 0: said[at] = static_cast<char>(random()); break;
      case 1: said.erase(at, 1 + random() % 10); break;
      default: said.insert(at, std::to_string(random())); break;
    }
  }
}

// Its memory is exactly as large as its place: whoever writes beside it is found by AddressSanitizer.
struct Expecting {
  explicit Expecting(Random& random) : bytes(1 + random() % 9000), memory(new std::byte[bytes]) {
    request.verb = static_cast<Verb>(random() % kVerbs);
    request.asking = random() % 4 == 0;
    request.replies = request.verb == Verb::Ask ? 1 + random() % 3 : 1;
    request.place = memory.get();
    request.place_bytes = bytes;
  }
  std::size_t bytes;
  std::unique_ptr<std::byte[]> memory;
  Request request;
};

std::uint64_t receive_some(Random& random) {
  Receiver receiver(kLimits);
  std::list<Expecting> window;
  std::string said;
  for (int i = 0; i < 4; ++i) {
    Expecting& next = window.emplace_back(random);
    if (next.request.asking) said += "+OK\r\n";
    for (std::size_t reply = 0; reply < next.request.replies; ++reply) said += a_reply(random, next.request);
  }
  if (random() % 2 == 0) damage(random, said);
  std::uint64_t answered = 0;
  for (std::size_t at = 0; at < said.size();) {
    iovec parts[2];
    const std::size_t count = receiver.places(parts, random() % 2 == 0);
    std::size_t left = std::min(said.size() - at, random() % 2 == 0 ? said.size() : 1 + random() % 600);
    std::size_t took = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t piece = std::min(left, parts[i].iov_len);
      std::memcpy(parts[i].iov_base, said.data() + at, piece);
      at += piece, left -= piece, took += piece;
    }
    if (took == 0) fail("the receiver takes nothing more, and has not said that anything is wrong");
    receiver.took(took);
    Reading reading = Reading::More;
    while ((reading = receiver.read(window.empty() ? nullptr : &window.front().request)) == Reading::Answered) {
      window.pop_front();
      ++answered;
    }
    if (reading == Reading::Broken) break;
  }
  return answered;
}

int run(double seconds, std::uint64_t seed) {
  Random random(static_cast<std::uint32_t>(seed) + 1);
  std::uint64_t answered = 0;
  for (int i = 0; i < 20'000; ++i) answered += receive_some(random);
  if (answered == 0) fail("no reply was understood");
  std::printf("replies understood %llu\n", static_cast<unsigned long long>(answered));
  EngineSettings settings;
  settings.limits = kLimits;
  Engine engine(settings);
  Client client(engine, seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) client.step();
  engine.close();
  client.hear();
  if (!client.has_all()) fail("requests did not end with the engine");
  const char* const names[] = {"done", "absent", "late", "lost", "refused", "malformed", "too large", "cancelled"};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    std::printf("%s %llu\n", names[i], static_cast<unsigned long long>(client.counts[i]));
    if (client.counts[i] == 0) fail("the run was too short to meet what it is there to meet");
  }
  std::printf("PASSED\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  std::printf("seed %llu, %g s\n", static_cast<unsigned long long>(seed), seconds);
  std::fflush(stdout);
  try {
    return run(seconds, seed);
  } catch (const std::exception& error) {
    fail(error.what());
  }
}
