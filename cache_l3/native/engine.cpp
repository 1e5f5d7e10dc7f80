// The engine's thread: commands in, bytes moved, deadlines kept, ends handed back.
#include "engine.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "clock.hpp"

namespace stratakv::l3 {
namespace {

constexpr int kEventsMax = 64;
constexpr std::uint64_t kTogetherNs = 300'000;  // pages that arrive within this time are told together while more are on their way
constexpr std::uint64_t kTimerTag = UINT64_MAX;
constexpr std::uint64_t kWakeTag = UINT64_MAX - 1;

Descriptor checked(int number, const char* what) {
  if (number < 0) throw std::system_error(errno, std::generic_category(), what);
  return Descriptor(number);
}

void watch(int epoll, int descriptor, std::uint64_t tag, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

void signal_event(int descriptor) noexcept {
  const std::uint64_t one = 1;
  while (::write(descriptor, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void clear_event(int descriptor) noexcept {
  std::uint64_t count = 0;
  while (::read(descriptor, &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

void add(std::atomic<std::uint64_t>& count, std::uint64_t more) { count.fetch_add(more, std::memory_order_relaxed); }
void put(std::atomic<std::uint64_t>& count, std::uint64_t now) { count.store(now, std::memory_order_relaxed); }

using Connections = std::vector<Connection*>::const_iterator;

// nullptr: none has room.
Connection* least_busy(Connections from, Connections end) {
  Connection* best = nullptr;
  for (; from != end; ++from) {
    if ((*from)->has_room() && (best == nullptr || (*from)->weight() < best->weight())) best = *from;
  }
  return best;
}

}  // namespace

Engine::Engine(const EngineSettings& settings)
    : settings_(settings),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wake_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      timer_(checked(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK), "timerfd_create")),
      ended_signal_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  watch(epoll_.get(), wake_.get(), kWakeTag, EPOLLIN);
  watch(epoll_.get(), timer_.get(), kTimerTag, EPOLLIN);
  // Signals are for the threads of the interpreter.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "stratakv-l3");
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Engine::~Engine() { close(); }

// ---- any thread ----

void Engine::send(Command command) {
  {
    const std::lock_guard<std::mutex> locked(commands_lock_);
    commands_.push_back(std::move(command));
  }
  flush();
}

void Engine::flush() {
  {
    const std::lock_guard<std::mutex> locked(commands_lock_);
    if (woken_ || commands_.empty()) return;
    woken_ = true;
  }
  signal_event(wake_.get());
}

void Engine::open_shard(std::uint32_t shard) { send({Order::OpenShard, 0, shard, {}, nullptr}); }
void Engine::close_shard(std::uint32_t shard) { send({Order::CloseShard, 0, shard, {}, nullptr}); }
void Engine::cancel(std::int64_t request) { send({Order::Cancel, request, 0, {}, nullptr}); }

void Engine::add_connection(std::int64_t number, std::uint32_t shard, Descriptor socket) {
  send({Order::AddConnection, number, shard, std::move(socket), nullptr});
}

void Engine::submit(std::unique_ptr<Request> request) {
  std::atomic<std::uint64_t>* const counts[kVerbs] = {&counts_.gets, &counts_.asks, &counts_.sets};
  add(*counts[static_cast<std::size_t>(request->verb)], 1);
  const std::lock_guard<std::mutex> locked(commands_lock_);
  commands_.push_back({Order::Submit, request->number, request->shard, {}, std::move(request)});
}

std::vector<Ended> Engine::drain() {
  const std::lock_guard<std::mutex> locked(ended_lock_);
  clear_event(ended_signal_.get());
  return std::exchange(ended_, {});
}

void Engine::close() {
  if (!thread_.joinable()) return;
  send({Order::Close, 0, 0, {}, nullptr});
  thread_.join();
}

// ---- the engine's thread ----

void Engine::run() {
  while (true) {
    take_commands();
    if (is_closing_) break;
    expire();
    serve_ready();
    hand_back();
    arm_timer();
    wait();
  }
  end_all();
  tell_by_ns_ = 0;
  hand_back();
}

void Engine::take_commands() {
  std::vector<Command> commands;
  {
    const std::lock_guard<std::mutex> locked(commands_lock_);
    commands.swap(commands_);
    woken_ = false;
  }
  for (Command& command : commands) obey(command);
}

void Engine::obey(Command& command) {
  switch (command.order) {
    case Order::OpenShard: shards_[command.shard]; break;
    case Order::CloseShard: end_shard(command.shard); break;
    case Order::AddConnection: take_connection(command); break;
    case Order::Submit: take(std::move(command.request)); break;
    case Order::Cancel: cancel_now(command.number); break;
    case Order::Close: is_closing_ = true; break;
  }
}

void Engine::take(std::unique_ptr<Request> request) {
  Request& taken = *request;
  requests_.emplace(taken.number, std::move(request));
  deadlines_.emplace(taken.deadline_ns, taken.number);
  const auto shard = shards_.find(taken.shard);
  if (shard == shards_.end()) return finish(taken, Status::Cancelled, "the shard is closed");
  queue(taken, false);
  assign(shard->second);
}

void Engine::take_connection(Command& command) {
  const auto shard = shards_.find(command.shard);
  if (shard == shards_.end()) return;
  const int descriptor = command.socket.get();
  auto made = std::make_unique<Connection>(
      command.number, command.shard, std::move(command.socket), settings_.limits, settings_.window);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = static_cast<std::uint64_t>(command.number);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
    just_ended_.push_back({~command.number, Status::ConnectionEnded, std::strerror(errno), nullptr});
    return;
  }
  shard->second.connections.push_back(made.get());
  connections_.emplace(command.number, std::move(made));
  put(counts_.connections, connections_.size());
  assign(shard->second);
}

void Engine::end_shard(std::uint32_t number) {
  const auto found = shards_.find(number);
  if (found == shards_.end()) return;
  const std::vector<Connection*> connections = found->second.connections;
  for (Connection* connection : connections) {
    for (Request* request : std::vector<Request*>(connection->window().begin(), connection->window().end())) {
      finish(*request, Status::Cancelled, "the shard is closed");
    }
    end_connection(*connection, nullptr, Status::Lost, "the shard is closed");
  }
  for (std::list<Request*>& waiting : found->second.queues) {
    while (!waiting.empty()) finish(*waiting.front(), Status::Cancelled, "the shard is closed");
  }
  shards_.erase(found);
}

void Engine::wait() {
  epoll_event events[kEventsMax];
  const int count = ::epoll_wait(epoll_.get(), events, kEventsMax, ready_.empty() ? -1 : 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t tag = events[i].data.u64;
    if (tag == kWakeTag) {
      clear_event(wake_.get());
    } else if (tag == kTimerTag) {
      clear_event(timer_.get());
      armed_ns_ = UINT64_MAX;
    } else if (const auto found = connections_.find(static_cast<std::int64_t>(tag)); found != connections_.end()) {
      found->second->told(events[i].events);
      make_ready(*found->second);
    }
  }
}

void Engine::make_ready(Connection& connection) {
  if (!connection.is_ready) ready_.push_back(connection.number());
  connection.is_ready = true;
}

// One turn for each connection that has something to do; those that have more come again after what others wait for.
void Engine::serve_ready() {
  for (const std::int64_t number : std::exchange(ready_, {})) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) continue;
    found->second->is_ready = false;
    serve(*found->second);
  }
}

void Engine::serve(Connection& connection) {
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  const Turn turn = connection.turn(bytes_in, bytes_out);
  add(counts_.bytes_in, bytes_in);
  add(counts_.bytes_out, bytes_out);
  if (turn == Turn::Again) make_ready(connection);
  switch (turn) {
    case Turn::Rest:
    case Turn::Again:
      if (connection.has_room()) assign(shards_.at(connection.shard()));
      return;
    case Turn::Answered:
      finish(*connection.window().front(), connection.answer_status(), std::move(connection.answer_text()));
      make_ready(connection);
      return assign(shards_.at(connection.shard()));
    case Turn::Broken: {
      Request* const oldest = connection.window().empty() ? nullptr : connection.window().front();
      return end_connection(connection, oldest, connection.failure(), std::string(connection.failure_text()));
    }
  }
}

// Gives waiting requests to those connections that have least under way, while any has room. Stores leave the first
// connection alone where there are others, so that a load never waits until a large page is stored.
void Engine::assign(Shard& shard) {
  while (true) {
    const auto& all = shard.connections;
    Connection* const for_any = least_busy(all.begin(), all.end());
    if (for_any == nullptr) return;
    Connection* const for_sets = least_busy(all.begin() + (all.size() > 1 ? 1 : 0), all.end());
    Request* const next = next_of(shard, for_sets != nullptr);
    if (next == nullptr) return;
    Connection& chosen = next->verb == Verb::Set ? *for_sets : *for_any;
    unqueue(*next);
    chosen.add(*next);
    put(counts_.in_flight, counts_.in_flight.load(std::memory_order_relaxed) + 1);
    make_ready(chosen);
  }
}

Request* Engine::next_of(Shard& shard, bool may_set) {
  const std::size_t verbs = may_set ? kVerbs : static_cast<std::size_t>(Verb::Set);
  std::size_t chosen = kVerbs;
  for (std::size_t verb = 0; verb < verbs; ++verb) {
    if (shard.queues[verb].empty()) {
      shard.passed_over[verb] = 0;
    } else if (chosen == kVerbs || shard.passed_over[verb] >= settings_.passed_over_max) {
      chosen = verb;
    }
  }
  if (chosen == kVerbs) return nullptr;
  for (std::size_t verb = 0; verb < verbs; ++verb) {
    if (!shard.queues[verb].empty()) ++shard.passed_over[verb];
  }
  shard.passed_over[chosen] = 0;
  return shard.queues[chosen].front();
}

void Engine::cancel_now(std::int64_t number) {
  const auto found = requests_.find(number);
  if (found != requests_.end()) give_up(*found->second, Status::Cancelled, "cancelled");
}

void Engine::expire() {
  if (deadlines_.empty()) return;
  const std::uint64_t now_ns = boottime_ns();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
    give_up(*requests_.at(deadlines_.begin()->second), Status::Late, "the deadline passed");
  }
}

// Only ever earlier: a timer that fires too early costs one look.
void Engine::arm_timer() {
  const std::uint64_t first_ns = std::min(tell_by_ns_, deadlines_.empty() ? UINT64_MAX : deadlines_.begin()->first);
  if (first_ns >= armed_ns_) return;
  armed_ns_ = first_ns;
  set_timer(timer_.get(), armed_ns_);
}

// Nobody waits for this request any more. If its reply may still come, the connection has to go with it.
void Engine::give_up(Request& request, Status status, const std::string& text) {
  if (request.was_sent) return end_connection(*request.connection, &request, status, text);
  Shard& shard = shards_.at(request.shard);
  finish(request, status, text);
  assign(shard);
}

// `culprit` ends with the status, what else was sent as lost; what was not waits again, before all that came later.
void Engine::end_connection(Connection& connection, Request* culprit, Status status, const std::string& text) {
  Shard& shard = shards_.at(connection.shard());
  connection.shut();
  const std::uint64_t now_ns = boottime_ns();
  std::vector<Request*> unsent;
  for (Request* request : std::vector<Request*>(connection.window().begin(), connection.window().end())) {
    if (request->was_sent && request == culprit) {
      finish(*request, status, text);
    } else if (request->was_sent && request->deadline_ns <= now_ns) {
      finish(*request, Status::Late, "the deadline passed");
    } else if (request->was_sent) {
      finish(*request, Status::Lost, "its connection ended: " + text);
    } else {
      leave_connection(*request);
      unsent.push_back(request);
    }
  }
  std::for_each(unsent.rbegin(), unsent.rend(), [&](Request* request) { queue(*request, true); });
  just_ended_.push_back({~connection.number(), Status::ConnectionEnded, text, nullptr});
  shard.connections.erase(std::find(shard.connections.begin(), shard.connections.end(), &connection));
  connections_.erase(connection.number());
  put(counts_.connections, connections_.size());
  assign(shard);
}

void Engine::queue(Request& request, bool first) {
  std::list<Request*>& waiting = shards_.at(request.shard).queues[static_cast<std::size_t>(request.verb)];
  request.spot = waiting.insert(first ? waiting.begin() : waiting.end(), &request);
  request.is_queued = true;
  put(counts_.queued, counts_.queued.load(std::memory_order_relaxed) + 1);
}

void Engine::unqueue(Request& request) {
  shards_.at(request.shard).queues[static_cast<std::size_t>(request.verb)].erase(request.spot);
  request.is_queued = false;
  put(counts_.queued, counts_.queued.load(std::memory_order_relaxed) - 1);
}

void Engine::leave_connection(Request& request) {
  request.connection->remove(request);
  put(counts_.in_flight, counts_.in_flight.load(std::memory_order_relaxed) - 1);
}

void Engine::finish(Request& request, Status status, std::string text) {
  if (request.connection != nullptr) {
    leave_connection(request);
  } else if (request.is_queued) {
    unqueue(request);
  }
  deadlines_.erase({request.deadline_ns, request.number});
  const auto found = requests_.find(request.number);
  just_ended_.push_back({request.number, status, std::move(text), std::move(found->second)});
  requests_.erase(found);
}

void Engine::hand_back() {
  if (just_ended_.empty()) return;
  if (tell_by_ns_ == UINT64_MAX) tell_by_ns_ = boottime_ns() + kTogetherNs;
  const bool all_may_wait = std::all_of(just_ended_.begin(), just_ended_.end(), [this](const Ended& each) { return may_wait(each); });
  if (all_may_wait && boottime_ns() < tell_by_ns_) return;
  tell_by_ns_ = UINT64_MAX;
  for (const Ended& each : just_ended_) add(counts_.ended[static_cast<std::size_t>(each.status)], 1);
  const std::lock_guard<std::mutex> locked(ended_lock_);
  if (ended_.empty()) signal_event(ended_signal_.get());
  std::move(just_ended_.begin(), just_ended_.end(), std::back_inserter(ended_));
  just_ended_.clear();
}

// Waking who waits for each page costs more than a page's transfer gains by it; the last one is told at once, though.
bool Engine::may_wait(const Ended& ended) const {
  return ended.status == Status::Done && ended.request->verb != Verb::Ask && counts_.in_flight.load(std::memory_order_relaxed) > 0;
}

void Engine::end_all() {
  while (!shards_.empty()) end_shard(shards_.begin()->first);
}

}  // namespace stratakv::l3
