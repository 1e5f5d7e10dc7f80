// The engine: one thread, its connections, the queues of its shards, and the way in and out for other threads.
//
// Any thread submits; what it submits is handed over under one lock and belongs to the engine's thread from then on. What has
// ended is handed back under another, with its request. Both sides are woken by eventfds. Nothing of Python is known here.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "connection.hpp"
#include "descriptor.hpp"
#include "receiver.hpp"
#include "request.hpp"

namespace stratakv::l3 {

struct EngineSettings {
  ReplyLimits limits;
  Window window;
  std::size_t passed_over_max = 8;  // so often may a request wait for more urgent ones
};

// The end of a request, or of a connection: then `number` is ~ of the connection's and there is no request.
struct Ended {
  std::int64_t number = 0;
  Status status = Status::Done;
  std::string text;
  std::unique_ptr<Request> request;
};

struct EngineCounts {
  std::atomic<std::uint64_t> gets{0}, sets{0}, asks{0}, bytes_in{0}, bytes_out{0};
  std::atomic<std::uint64_t> ended[static_cast<std::size_t>(Status::ConnectionEnded) + 1] = {};
  std::atomic<std::uint64_t> connections{0}, queued{0}, in_flight{0};
};

class Engine {
 public:
  // Throws std::system_error when the kernel gives no descriptor or thread.
  explicit Engine(const EngineSettings& settings);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void open_shard(std::uint32_t shard);
  void close_shard(std::uint32_t shard);
  void add_connection(std::int64_t number, std::uint32_t shard, Descriptor socket);
  // The thread need not look at it before the next flush(): waking it costs more than handing over many.
  void submit(std::unique_ptr<Request> request);
  void flush();
  void cancel(std::int64_t request);
  // What has ended since the last call; ended_descriptor() is readable while there is some.
  std::vector<Ended> drain();
  int ended_descriptor() const { return ended_signal_.get(); }
  const EngineCounts& counts() const { return counts_; }
  const HeaderShape& shape() const { return settings_.limits.shape; }
  // Ends everything that is under way as cancelled, then the thread. What is submitted afterwards is never looked at.
  void close();

 private:
  enum class Order { OpenShard, CloseShard, AddConnection, Submit, Cancel, Close };
  struct Command {
    Order order;
    std::int64_t number = 0;
    std::uint32_t shard = 0;
    Descriptor socket;
    std::unique_ptr<Request> request;
  };
  struct Shard {
    std::list<Request*> queues[kVerbs];
    std::size_t passed_over[kVerbs] = {};
    std::vector<Connection*> connections;
  };

  void send(Command command);
  void run();
  void take_commands();
  void obey(Command& command);
  void take(std::unique_ptr<Request> request);
  void take_connection(Command& command);
  void end_shard(std::uint32_t number);
  void wait();
  void serve_ready();
  void serve(Connection& connection);
  void make_ready(Connection& connection);
  void assign(Shard& shard);
  Request* next_of(Shard& shard, bool may_set);
  void cancel_now(std::int64_t number);
  void expire();
  void arm_timer();
  void give_up(Request& request, Status status, const std::string& text);
  void end_connection(Connection& connection, Request* culprit, Status status, const std::string& text);
  void unqueue(Request& request);
  void queue(Request& request, bool first);
  void leave_connection(Request& request);
  void finish(Request& request, Status status, std::string text);
  void hand_back();
  bool may_wait(const Ended& ended) const;
  void end_all();

  const EngineSettings settings_;
  EngineCounts counts_;
  Descriptor epoll_, wake_, timer_, ended_signal_;

  std::mutex commands_lock_;
  std::vector<Command> commands_;
  bool woken_ = false;

  std::mutex ended_lock_;
  std::vector<Ended> ended_;

  // The thread's own.
  bool is_closing_ = false;
  std::unordered_map<std::int64_t, std::unique_ptr<Request>> requests_;
  std::unordered_map<std::int64_t, std::unique_ptr<Connection>> connections_;
  std::unordered_map<std::uint32_t, Shard> shards_;
  std::set<std::pair<std::uint64_t, std::int64_t>> deadlines_;
  std::uint64_t armed_ns_ = UINT64_MAX;
  std::vector<std::int64_t> ready_;  // connections that have more to do, each once
  std::vector<Ended> just_ended_;
  std::uint64_t tell_by_ns_ = UINT64_MAX;  // what has ended and was not told yet is told then

  std::thread thread_;
};

}  // namespace stratakv::l3
